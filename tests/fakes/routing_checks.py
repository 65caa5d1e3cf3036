"""Checks of stored routing against the experts that an engine's weights choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runners.records.graph import build_segments
from runners.records.routing import RoutingShape, TurnRouting, build_segment_routing
from runners.records.store.run_store import RunStore
from tests.fakes.running_gateway import Gateway

Choose = Callable[[NDArray[np.int32], int], NDArray[np.integer[Any]]]
"""Returns the experts that weights of a version choose for tokens, int32 [T, layers, top_k]."""


def stored_routing(gateway: Gateway, session_id: str = "s1") -> dict[int, TurnRouting]:
    """Return the routing in the store, as another process reads it."""
    with RunStore.open(gateway.run_dir, read_only=True) as store:
        return store.routing(session_id)


def check_trained_rows(gateway: Gateway, choose: Choose, shape: RoutingShape) -> list[int]:
    """Check that the row before each trained token is that of the weights that sampled it; return
    the weight versions found.
    """
    found: set[int] = set()
    held = stored_routing(gateway)
    chains = build_segments(gateway.turns("s1"))
    assert chains
    for chain in chains:
        routing = build_segment_routing(chain, held, shape)
        assert routing.valid.tolist() == [True] * (len(chain.tokens) - 1) + [False]
        trained = np.flatnonzero(chain.loss_mask)
        versions = chain.weight_versions[trained]
        for version in set(versions.tolist()):
            at = trained[versions == version] - 1
            chosen = np.sort(choose(chain.tokens, version)[at], axis=-1)
            assert np.array_equal(np.sort(routing.experts[at], axis=-1), chosen), chain.kind
            found.add(version)
    return sorted(found)
