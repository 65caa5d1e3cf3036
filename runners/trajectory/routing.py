"""The experts that an engine chose: what is kept of them turn by turn, and a chain's put together.

Row r of a turn's routing belongs to the token at position ``start + r`` of the turn's path, and
every position of a path is in one turn's rows only. The last token of a turn never went through the
model, so it has no row; the next turn on its path brings it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.errors import AgentrlError
from runners.trajectory.record import IdArray, Segment

RoutingArray = NDArray[np.uint8] | NDArray[np.uint16]
"""Expert ids, [rows, decoder layers, top_k]: uint8 up to 256 experts, else uint16. A dense layer's
say nothing.
"""


UINT8_EXPERTS = 256
"""So many experts have ids of one byte."""


class RoutingError(AgentrlError):
    """Routing is not what it has to be: it belongs to something else, or cannot be replayed."""


@dataclass(frozen=True, slots=True)
class RoutingShape:
    """What one token's routing looks like."""

    layers: int
    """Decoder layers, dense ones too: engines report them all, dense ones as zeros."""
    top_k: int
    experts: int
    routed: tuple[int, ...]
    """The layers that route."""

    def cast_ids(self, experts: NDArray[np.integer[Any]]) -> RoutingArray:
        """Return ids in the smallest type that holds every expert's; raises ValueError for an id
        that is none's.
        """
        if experts.size and not 0 <= int(experts.min()) <= int(experts.max()) < self.experts:
            raise ValueError(
                f"expert ids from {experts.min()} to {experts.max()}, and there are {self.experts}"
            )
        return (
            experts.astype(np.uint8) if self.experts <= UINT8_EXPERTS else experts.astype(np.uint16)
        )


@dataclass(frozen=True, slots=True)
class TurnRouting:
    """The routing of one turn, for the positions that no turn before it on its path has."""

    start: int
    experts: RoutingArray
    choices: int
    """How many experts there are to choose from."""
    tokens_crc: int
    """``tokens_checksum`` of the tokens at those positions."""
    weight_version: int
    """The turn's."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts that inference chose for the tokens of a chain."""

    experts: RoutingArray
    """[T, layers, top_k]; the ids of a row and layer are distinct, also where ``valid`` is False.
    """
    valid: NDArray[np.bool_]
    """[T]; False where nothing was captured: the training router chooses there."""


def checksum_tokens(tokens: IdArray) -> int:
    """Return the CRC-32 of token ids as little-endian int32: tells tokens that were shifted or
    exchanged.
    """
    return zlib.crc32(tokens.astype("<i4").tobytes())


def build_turn_routing(
    flat: NDArray[np.int32], path: IdArray, start: int, shape: RoutingShape, weight_version: int
) -> TurnRouting:
    """Return the routing of a turn from what its engine sent, without shape, for positions
    ``start`` to the end.

    ``path``: prompt + output of the turn, int32 [T]; the rows are then T − 1 − start. Raises
    ValueError if they are not, or if they name an expert that there is not.
    """
    rows = len(path) - 1 - start
    if flat.size != rows * shape.layers * shape.top_k:
        raise ValueError(
            f"{flat.size} ids of experts for {rows} tokens, {shape.layers} layers and "
            f"{shape.top_k} experts each"
        )
    experts = shape.cast_ids(flat.reshape(rows, shape.layers, shape.top_k))
    crc = checksum_tokens(path[start : start + rows])
    return TurnRouting(start, experts, shape.experts, crc, weight_version)


def make_unrouted(shape: RoutingShape, tokens: int) -> Routing:
    """Return routing of so many tokens that says nothing: all invalid.

    Each token and layer has the experts after those of the one before, modulo their number: they
    are distinct, which dispatchers count on, and no expert has more than its share.
    """
    each = shape.cast_ids(np.arange(shape.experts))
    size = (tokens, shape.layers, shape.top_k)
    filled: RoutingArray = np.resize(each, size)  # type: ignore[assignment]  # over and over
    return Routing(filled, np.zeros(tokens, bool))


def build_segment_routing(
    segment: Segment, turns: Mapping[int, TurnRouting], shape: RoutingShape
) -> Routing:
    """Return a chain's routing: each token gets the row of the turn that first ran it.

    Not valid are tokens that no turn on the path has a row for, and those whose row came with other
    weights than sampled the next token: a later turn filled the gap, after an update. ``turns``:
    the routing of the session's turns, by turn. Raises RoutingError if rows belong to other tokens
    than the chain's, or are another model's.
    """
    routing = make_unrouted(shape, len(segment.tokens))
    # the row of a position made the choice of the token after it
    sampled_by = np.append(segment.weight_versions[1:], -1)
    for index in segment.turns:
        part = turns.get(index)
        if part is None:
            continue
        span = slice(part.start, part.start + len(part.experts))
        _refuse_foreign(part, index, segment, span, shape)
        routing.experts[span] = part.experts
        routing.valid[span] = np.isin(sampled_by[span], (-1, part.weight_version))
    return routing


def _refuse_foreign(
    part: TurnRouting, index: int, segment: Segment, span: slice, shape: RoutingShape
) -> None:
    here = f"the routing of turn {index} of session {segment.session_id}"
    theirs = (*part.experts.shape[1:], part.choices)
    if theirs != (shape.layers, shape.top_k, shape.experts):
        raise RoutingError(
            f"{here} has {theirs[0]} layers and {theirs[1]} of {theirs[2]} experts a token, the "
            f"policy {shape.layers} layers and {shape.top_k} of {shape.experts}"
        )
    if checksum_tokens(segment.tokens[span]) != part.tokens_crc:
        raise RoutingError(
            f"{here} belongs to other tokens than {span.start} to {span.stop} of its segment"
        )
