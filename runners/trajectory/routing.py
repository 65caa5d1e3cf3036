"""The experts that an engine chose, turn by turn: what is kept of them, and its shape.

Row r of a turn's routing belongs to the token at position ``start + r`` of the turn's path, and
every position of a path is in one turn's rows only. The last token of a turn never went through the
model, so it has no row; the next turn on its path brings it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runners.trajectory.record import IdArray

RoutingArray = NDArray[np.uint8] | NDArray[np.uint16]
"""Expert ids, [rows, decoder layers, top_k]: uint8 up to 256 experts, else uint16. A dense layer's
say nothing.
"""


@dataclass(frozen=True, slots=True)
class RoutingShape:
    """What one token's routing looks like."""

    layers: int
    """Decoder layers, dense ones too: engines report them all, dense ones as zeros."""
    top_k: int
    experts: int
    routed: tuple[int, ...]
    """The layers that route."""

    def narrow(self, experts: NDArray[np.integer[Any]]) -> RoutingArray:
        """Return ids in the smallest type that holds every expert's; raises ValueError for an id
        that is none's.
        """
        if experts.size and not 0 <= int(experts.min()) <= int(experts.max()) < self.experts:
            raise ValueError(
                f"expert ids from {experts.min()} to {experts.max()}, and there are {self.experts}"
            )
        return experts.astype(np.uint8) if self.experts <= 256 else experts.astype(np.uint16)


@dataclass(frozen=True, slots=True)
class TurnRouting:
    """The routing of one turn, for the positions that no turn before it on its path has."""

    start: int
    experts: RoutingArray
    tokens_crc: int
    """``tokens_checksum`` of the tokens at those positions."""


def tokens_checksum(tokens: IdArray) -> int:
    """Return the CRC-32 of token ids as little-endian int32: tells tokens that were shifted or
    exchanged.
    """
    return zlib.crc32(tokens.astype("<i4").tobytes())


def turn_routing(
    flat: NDArray[np.int32], path: IdArray, start: int, shape: RoutingShape
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
    experts = shape.narrow(flat.reshape(rows, shape.layers, shape.top_k))
    return TurnRouting(start, experts, tokens_checksum(path[start : start + rows]))
