"""Expert routing of a mixture-of-experts policy: stored by turn, assembled by chain.

Row r of a turn's routing belongs to the token at position ``start + r`` of the turn's path, and
every position of a path is in one turn's rows only. The last token of a turn never went through the
model, so it has no row; the next turn on its path brings it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.errors import AgentrlError
from runners.records.record import IdArray, Segment, WeightSpans, expand_spans

RoutingArray = NDArray[np.uint8] | NDArray[np.uint16]
"""Expert ids [rows, decoder layers, top_k]: uint8 up to 256 experts, else uint16. Those of a dense
layer mean nothing.
"""

UINT8_EXPERTS = 256
"""The most experts whose ids fit into one byte."""


class RoutingError(AgentrlError):
    """Routing belongs to other tokens or another model, or cannot be replayed."""


@dataclass(frozen=True, slots=True)
class RoutingShape:
    """Shape of one token's routing: ``layers`` × ``top_k`` ids of ``experts``."""

    layers: int
    """Decoder layers, dense ones included: engines report zeros for those."""
    top_k: int
    experts: int
    routed: tuple[int, ...]
    """The layers that route."""

    def cast_ids(self, experts: NDArray[np.integer[Any]]) -> RoutingArray:
        """Return expert ids in the smallest dtype for ``experts``; raises ValueError for an id that
        no expert has.
        """
        if experts.size and not 0 <= int(experts.min()) <= int(experts.max()) < self.experts:
            raise ValueError(
                f"expert ids from {experts.min()} to {experts.max()}, and there are {self.experts}"
            )
        return (
            experts.astype(np.uint8) if self.experts <= UINT8_EXPERTS else experts.astype(np.uint16)
        )


NO_ROW = 255
"""In ``TokenAgreement.percent``: the token's experts were not replayed."""


@dataclass(frozen=True, slots=True)
class TokenAgreement:
    """Agreement of training's own router with the replayed experts of a sample, token by token,
    before the step's first update.
    """

    rollout_id: str
    tokens_crc: int
    """``checksum_tokens`` of the tokens that were run, which begin a chain."""
    percent: NDArray[np.uint8]
    """uint8 [n]: share of a token's (layer, expert) slots that training would choose too, 0 to 100,
    rounded down so that 100 is all of them; ``NO_ROW``.
    """


@dataclass(frozen=True, slots=True)
class TurnRouting:
    """Routing of one turn, for the positions that no earlier turn on its path has."""

    start: int
    experts: RoutingArray
    choices: int
    """Number of experts to choose from."""
    tokens_crc: int
    """``tokens_checksum`` of the tokens at those positions."""
    weight_version: int
    """The turn's; if its weights were switched, that of its first output token."""
    output_versions: IdArray | None = None
    """int32 [m]: those of the rows that sampled the output, the last m; None: ``weight_version``.
    """

    def row_versions(self) -> IdArray:
        """Return the version of the weights that computed each row, int32 [rows]."""
        versions = np.full(len(self.experts), self.weight_version, np.int32)
        if self.output_versions is not None:
            known = self.output_versions[max(0, len(self.output_versions) - len(versions)) :]
            versions[len(versions) - len(known) :] = known
        return versions

    def switch_weights(self, spans: WeightSpans) -> TurnRouting:
        """Return it with the versions of a turn's ``weight_spans``; none change nothing."""
        if not spans:
            return self
        output = expand_spans(spans, -1, sum(count for _, count in spans))
        return replace(self, weight_version=int(output[0]), output_versions=output)


@dataclass(frozen=True, slots=True)
class Routing:
    """Routing of a chain, as inference chose it."""

    experts: RoutingArray
    """uint8 or uint16 [T, layers, top_k]; the ids of a row and layer are distinct, also where
    ``valid`` is False.
    """
    valid: NDArray[np.bool_]
    """bool [T]; False where nothing was captured: there the training router chooses."""


def checksum_tokens(tokens: IdArray) -> int:
    """Return the CRC-32 of token ids (as little-endian int32); it detects shifted or exchanged
    tokens.
    """
    return zlib.crc32(tokens.astype("<i4").tobytes())


def build_turn_routing(
    flat: NDArray[np.int32], path: IdArray, start: int, shape: RoutingShape, weight_version: int
) -> TurnRouting:
    """Return the routing of a turn from position ``start`` on.

    ``flat``: the engine's ids, int32 [rows · layers · top_k]; ``path``: prompt + output of the
    turn, int32 [T]; rows = T − 1 − start. Raises ValueError if the size is another, or an id is no
    expert's.
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
    """Return routing of so many tokens without information: ``valid`` is False everywhere.

    The ids run through all experts again and again. So those of one row and layer are distinct,
    which token dispatchers require, and every expert gets an equal share.
    """
    each = shape.cast_ids(np.arange(shape.experts))
    size = (tokens, shape.layers, shape.top_k)
    # resize repeats the ids until the shape is full
    filled: RoutingArray = np.resize(each, size)  # type: ignore[assignment]
    return Routing(filled, np.zeros(tokens, bool))


def build_segment_routing(
    segment: Segment, turns: Mapping[int, TurnRouting], shape: RoutingShape
) -> Routing:
    """Return a chain's routing: each token gets the row of the turn that first ran it.

    ``turns``: the routing of the session's turns, by turn index. A token is not valid if no turn on
    the path has a row for it, or if its row came with other weights than those that sampled the
    next token (a later turn filled the gap, after an update). Raises RoutingError if rows belong to
    other tokens than the chain's, or to another model.
    """
    routing = make_unrouted(shape, len(segment.tokens))
    # the forward pass of a position chose the token after it: compare with that token's weights
    sampled_by = np.append(segment.weight_versions[1:], -1)
    for index in segment.turns:
        part = turns.get(index)
        if part is None:
            continue
        span = slice(part.start, part.start + len(part.experts))
        _refuse_foreign(part, index, segment, span, shape)
        routing.experts[span] = part.experts
        sampled = sampled_by[span]
        routing.valid[span] = (sampled == -1) | (sampled == part.row_versions())
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
