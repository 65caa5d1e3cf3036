"""From the routing of turns to the routing of a segment: each token gets the row of the turn that
first ran it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runners.training.routing.replay import RoutingError
from runners.training.routing.shape import unrouted
from runners.training.sample import Routing
from runners.trajectory.record import Segment
from runners.trajectory.routing import RoutingShape, TurnRouting, tokens_checksum


def segment_routing(
    segment: Segment, turns: Mapping[int, TurnRouting], shape: RoutingShape
) -> Routing:
    """Return a segment's routing; tokens that no turn on its path has a row for are not valid.

    ``turns``: the routing of the session's turns, by turn. Raises RoutingError if rows belong to
    other tokens than the segment's, or are of another model.
    """
    length = len(segment.tokens)
    routing = unrouted(shape, length)
    experts, valid = routing.experts, routing.valid
    for index in segment.turns:
        part = turns.get(index)
        if part is None:
            continue
        rows = len(part.experts)
        span = slice(part.start, part.start + rows)
        here = f"turn {index} of session {segment.session_id}"
        if part.experts.shape[1:] != (shape.layers, shape.top_k):
            raise RoutingError(
                f"the routing of {here} has {part.experts.shape[1:]} layers and experts a token, "
                f"the policy {(shape.layers, shape.top_k)}"
            )
        if tokens_checksum(segment.tokens[span]) != part.tokens_crc:
            raise RoutingError(
                f"the routing of {here} belongs to other tokens than {span.start} to {span.stop} "
                "of its segment"
            )
        experts[span] = np.asarray(part.experts, experts.dtype)
        valid[span] = True
    return routing
