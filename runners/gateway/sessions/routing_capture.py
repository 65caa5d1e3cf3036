"""The expert routing of a session's turns: the rows to ask the engine for, and those that came.

The row of a position is asked for once: each turn asks from the first position of its path that no
earlier turn holds a row for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runners.records.record import IdArray, Turn
from runners.records.routing import RoutingShape, TurnRouting, build_turn_routing


class RoutingCapture:
    """The routing of one session's turns; changed by its session only."""

    def __init__(self, shape: RoutingShape | None) -> None:
        """``shape`` None: capture nothing."""
        self._shape = shape
        self._rows: dict[int, int] = {}
        """By turn: how many leading positions of its path have a row."""
        self.missing = 0
        """Turns whose engine sent no rows, or others than were asked for."""
        self.fault: str | None = None
        """The newest of these faults."""

    def first_missing_row(self, parent: int | None) -> int | None:
        """Return the position to ask the engine's rows from, for a turn that continues ``parent``;
        None: ask for none.
        """
        if self._shape is None:
            return None
        return 0 if parent is None else self._rows[parent]

    def add_turn(
        self, turn: Turn, path: IdArray, sent: NDArray[np.int32] | None
    ) -> TurnRouting | None:
        """Return a turn's routing, made of the rows that its engine sent (int32, flat).

        ``path``: its prompt + output, int32 [n]. None if routing is not captured, or the engine
        sent none or wrong rows: then training routes these tokens by itself, and the next turn on
        the path asks for their rows again.
        """
        start = self.first_missing_row(turn.parent)
        if self._shape is None or start is None:
            return None
        self._rows[turn.index] = start
        try:
            if sent is None:
                raise ValueError("no routing, though it was asked for")
            routing = build_turn_routing(sent, path, start, self._shape, turn.weight_version)
        except ValueError as error:
            self.missing += 1
            self.fault = f"turn {turn.index}: {error}"
            return None
        self._rows[turn.index] = start + len(routing.experts)
        return routing.switch_weights(turn.weight_spans)
