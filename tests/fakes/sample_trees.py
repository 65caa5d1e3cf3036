"""Samples that branch off each other anywhere, also in the middle of what was sampled."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from runners.records.routing import Routing, RoutingShape
from runners.training.sample import Sample

FEW = 5
"""Tokens that occur: chance makes samples agree beyond where they branch off, too."""


@st.composite
def sample_trees(
    draw: st.DrawFn, *, most: int = 7, longest: int = 24, shape: RoutingShape | None = None
) -> list[Sample]:
    """Return samples of which each begins as one before it, up to any token, or is the same one
    again with another advantage. With a ``shape`` each has the routing of what it began as, apart
    from single rows; some have rows that nothing is known of, or no routing at all.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    samples: list[Sample] = []
    for number in range(draw(st.integers(1, most))):
        parent = draw(st.none() | st.sampled_from(samples)) if samples else None
        shared = 0 if parent is None else draw(st.integers(0, len(parent.tokens)))
        own = draw(st.integers(2 if shared < 2 else 0, longest))
        start = np.zeros(0, np.int32) if parent is None else parent.tokens[:shared]
        tokens = np.concatenate([start, rng.integers(0, FEW, own)]).astype(np.int32)
        mask = rng.random(len(tokens)) < draw(st.sampled_from([0.1, 0.5, 1.0]))
        mask[0] = False
        mask[rng.integers(1, len(tokens))] = True
        found = [
            np.where(mask, rng.normal(-3, 0.5, len(tokens)), 0).astype(np.float32) for _ in "ab"
        ]
        routing = None if shape is None else _route(rng, len(tokens), shared, parent, shape)
        name = f"r{draw(st.integers(0, number))}"
        samples.append(
            Sample(
                name, tokens, mask, found[0], float(rng.normal()), routing=routing,
                old_logprobs=found[1], reference_logprobs=found[1][::-1].copy(),
            )
        )  # fmt: skip
    return samples


def _route(
    rng: np.random.Generator, size: int, shared: int, parent: Sample | None, shape: RoutingShape
) -> Routing | None:
    if rng.random() < 0.1:
        return None
    chance = rng.random((size, shape.layers, shape.experts))
    experts = shape.cast_ids(chance.argsort(axis=-1)[..., : shape.top_k])
    valid = (rng.random(size) < 0.95) & (np.arange(size) < size - 1)
    if parent is not None and parent.routing is not None:
        kept = np.flatnonzero(rng.random(shared) < 0.98)
        experts[kept], valid[kept] = parent.routing.experts[kept], parent.routing.valid[kept]
        valid[-1] = False  # it may be a token in the middle of the parent
    return Routing(experts, valid)
