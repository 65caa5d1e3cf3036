"""Compactions that never happened: a program that ignores its window goes on with a history beyond
it, so that the scenario is another one than the configured.
"""

from __future__ import annotations

import logging

from runners.trajectory.record import Turn

logger = logging.getLogger(__name__)

TOLERANCE = 1.05
"""Of the window: programs compare the usage that they were told, some of them with margins."""


class CompactionWatch:
    """Watches the lengths of one session's histories; grows by ``add_turn`` only."""

    def __init__(self, session_id: str, window: int | None) -> None:
        """``window``: tokens beyond which a history is to be summed up; None: it never is."""
        self._session_id = session_id
        self._window = window
        self._lengths: list[int] = []
        """Tokens of each turn's prompt and answer."""
        self._is_reported = False

    def add_turn(self, turn: Turn) -> bool:
        """Add a turn; return whether it goes on with a history that was to be summed up."""
        self._lengths.append(turn.prompt_tokens + turn.output_tokens)
        if self._window is None or turn.parent is None or turn.branch in ("compaction", "side"):
            return False
        length = self._lengths[turn.parent]
        if length <= TOLERANCE * self._window:
            return False
        if not self._is_reported:
            self._is_reported = True
            logger.warning(
                "session %s: turn %d goes on with a history of %d tokens, which was to be summed "
                "up at scenario.window_tokens=%d: the agent program ignores its window",
                *(self._session_id, turn.index, length, self._window),
            )
        return True
