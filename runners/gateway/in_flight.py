"""A turn in the making, and who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class InFlightTurn:
    """A turn that somebody waits for. When the last one leaves before the sampling ended, it is
    aborted.
    """

    def __init__(self, message_id: str, prompt_tokens: int) -> None:
        self.message_id = message_id
        self.prompt_tokens = prompt_tokens
        self.outcome: asyncio.Future[dict[str, Any]]
        """The message answered; raises Refused, or is cancelled."""
        self.abandoned = False
        self.sampled = False
        """From here on it ends in a durable turn, whoever waits."""
        self._waiting = 0

    @contextmanager
    def waiting(self) -> Iterator[asyncio.Future[dict[str, Any]]]:
        """Wait for the outcome inside this context."""
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
    """Return the flight of a turn that was taken before: its outcome is there."""
    flight = InFlightTurn(response["id"], prompt_tokens)
    flight.sampled = True
    flight.outcome = asyncio.get_running_loop().create_future()
    flight.outcome.set_result(response)
    return flight
