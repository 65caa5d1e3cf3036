"""Which rows of routing a session has, and which it asks the engine for: from the first position
that no turn on the path holds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runners.trajectory.record import Turn
from runners.trajectory.routing import RoutingShape, TurnRouting, build_turn_routing


class RoutingCapture:
    """The routing of one session's turns; changed by its session only."""

    def __init__(self, shape: RoutingShape | None) -> None:
        self._shape = shape
        self._held: dict[int, int] = {}
        """By turn: how many leading positions of its path have a row."""
        self.missing = 0
        """Turns whose engine sent no rows, or not those that were asked for."""
        self.fault: str | None = None
        """What was wrong with the newest of them."""

    def first_missing_row(self, parent: int | None) -> int | None:
        """Return what to ask the engine for, for a turn that continues another; None: nothing."""
        if self._shape is None:
            return None
        return 0 if parent is None else self._held[parent]

    def add_turn(
        self, turn: Turn, path: list[int], sent: NDArray[np.int32] | None
    ) -> TurnRouting | None:
        """Return a turn's routing, of what its engine sent; ``path``: its prompt + output.

        None if routing is off or there is none to be had: the turn's tokens are then routed
        natively, and the next turn on the path asks for them again.
        """
        start = self.first_missing_row(turn.parent)
        if self._shape is None or start is None:
            return None
        self._held[turn.index] = start
        try:
            if sent is None:
                raise ValueError("no routing, though it was asked for")
            tokens = np.array(path, np.int32)
            routing = build_turn_routing(sent, tokens, start, self._shape, turn.weight_version)
        except ValueError as error:
            self.missing += 1
            self.fault = f"turn {turn.index}: {error}"
            return None
        self._held[turn.index] = start + len(routing.experts)
        return routing
