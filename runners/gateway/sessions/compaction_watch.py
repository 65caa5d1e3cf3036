"""Compactions that never happened: a program that ignores its window goes on with a history beyond
it, so that the scenario is another one than the configured.
"""

from __future__ import annotations

import logging

from runners.records.record import Turn

logger = logging.getLogger(__name__)

TOLERANCE = 1.05
"""Of the window: programs compare the usage that they were told, some of them with margins."""
PATIENCE = 2
"""Turns in a row beyond the window without an alarm: Claude Code never sums up after the first."""


class CompactionWatch:
    """Watches the lengths of one session's histories; grows by ``add_turn`` only."""

    def __init__(self, session_id: str, window: int | None) -> None:
        """``window``: tokens beyond which a history is to be summed up; None: it never is."""
        self._session_id = session_id
        self._window = window
        self._beyond: list[int] = []
        """Turns in a row, by the last of them, whose prompt and answer were beyond the window."""
        self._is_reported = False

    def add_turn(self, turn: Turn) -> bool:
        """Add a turn; return whether it goes on with a history that was to be summed up."""
        before = 0 if turn.parent is None else self._beyond[turn.parent]
        length = turn.prompt_tokens + turn.output_tokens
        is_beyond = self._window is not None and length > TOLERANCE * self._window
        self._beyond.append(before + 1 if is_beyond else 0)
        if before < PATIENCE or turn.branch in ("compaction", "side"):
            return False
        if not self._is_reported:
            self._is_reported = True
            logger.warning(
                "session %s: turn %d has a history of %d tokens, which was to be summed up at "
                "scenario.window_tokens=%d: the agent program ignores its window",
                *(self._session_id, turn.index, length, self._window),
            )
        return True
