"""A turn that is being taken, and the requests that wait for it.

Several HTTP requests can wait for one turn: a client that retries joins the turn that its first
request began. When the last of them disconnects before the sampling has ended, the turn is aborted;
after that it ends in a stored turn, whoever waits, so that a retry finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class InFlightTurn:
    """A turn from its request to its answer; changed by its session, and by those that wait."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.prompt_tokens = 0
        """Known when the turn is placed."""
        self.outcome: asyncio.Future[dict[str, Any]]
        """The body that answers; raises Refused, or is cancelled."""
        self.abandoned = False
        """It was aborted; a retry begins a turn of its own."""
        self.sampled = False
        """The engine has answered: from here on nothing aborts the turn."""
        self._waiting = 0
        self._is_placed = False
        self._placed_or_ended = asyncio.Event()

    def begin(self, outcome: asyncio.Future[dict[str, Any]]) -> None:
        """Let it end as a future does."""
        self.outcome = outcome
        outcome.add_done_callback(lambda _: self._placed_or_ended.set())

    def set_placed(self, prompt_tokens: int) -> None:
        """Let the turn's clients know that it is not refused, and the length of its prompt."""
        self.prompt_tokens = prompt_tokens
        self._is_placed = True
        self._placed_or_ended.set()

    async def wait_until_placed(self) -> bool:
        """Wait until the turn is placed; False if it ended before, by a refusal."""
        await self._placed_or_ended.wait()
        return self._is_placed

    @contextmanager
    def waiting(self) -> Iterator[asyncio.Future[dict[str, Any]]]:
        """Count the caller among those that wait while the block runs; yield the outcome.

        The caller must not await the future itself: the cancellation of one request (its client
        disconnected) would cancel the turn of all. ``asyncio.wait`` leaves it alone.
        """
        self._waiting += 1
        try:
            yield self.outcome
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.abort()

    def abort(self) -> None:
        """Cut the generation off, unless it is over."""
        if not self.sampled and not self.outcome.done():
            self.abandoned = True
            self.outcome.cancel()


def completed_turn(response: dict[str, Any], prompt_tokens: int) -> InFlightTurn:
    """Return an earlier turn as one whose outcome is there: a retry is answered from it."""
    turn = InFlightTurn(response.get("id", ""))  # Google's streams do not open with it
    turn.set_placed(prompt_tokens)
    turn.sampled = True
    outcome: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    outcome.set_result(response)
    turn.begin(outcome)
    return turn
