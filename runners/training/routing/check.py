"""Whether a sample's routing can be what it claims to be: cheap, before anything is replayed.

What is wrong without being impossible (rows that belong to another turn, say) shows in the replay:
its choices are not the training router's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runners.training.sample import Sample
from runners.trajectory.routing import RoutingShape


def routing_fault(sample: Sample, shape: RoutingShape) -> str | None:
    """Return what is wrong with a sample's routing, naming layer and token; None if nothing is."""
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
