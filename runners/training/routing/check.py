"""Check that a sample's captured routing is possible, cheaply and before anything is replayed.

Routing that is wrong but possible, such as the rows of another turn, is found in the replay: its
choices are not those of the training router.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runners.records.routing import RoutingShape
from runners.training.sample import Sample


def find_routing_fault(sample: Sample, shape: RoutingShape) -> str | None:
    """Return the reason why a sample's routing is impossible, with layer and token; None if it is
    possible.

    Checked: shape ``[tokens, layers, top_k]``, no row for the last token, and per valid row and
    routed layer distinct ids below the number of experts.
    """
    routing = sample.routing
    if routing is None:
        return "has no routing, while others of its batch have"
    wanted = (len(sample.tokens), shape.layers, shape.top_k)
    if routing.experts.shape != wanted or routing.valid.shape != wanted[:1]:
        return (
            f"has routing of shape {routing.experts.shape} (valid {routing.valid.shape}), "
            f"not {wanted}"
        )
    if routing.valid[-1]:
        return "claims routing for its last token, which never went through the model"
    rows = np.flatnonzero(routing.valid)
    chosen: NDArray[np.integer[Any]] = np.sort(
        routing.experts[rows][:, list(shape.routed)], axis=-1
    )
    beyond = chosen[..., -1] >= shape.experts
    if beyond.any():
        row, layer = np.argwhere(beyond)[0]
        return (
            f"routes token {rows[row]} in layer {shape.routed[layer]} to expert "
            f"{chosen[row, layer, -1]} of {shape.experts}"
        )
    twice = (chosen[..., 1:] == chosen[..., :-1]).any(axis=-1)
    if twice.any():
        row, layer = np.argwhere(twice)[0]
        return (
            f"routes token {rows[row]} in layer {shape.routed[layer]} twice to one expert "
            f"({chosen[row, layer].tolist()}): is it padding?"
        )
    return None
