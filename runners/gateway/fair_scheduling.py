"""Shares of the event loop: a session does one short piece of work on it at a time, then pauses.

So the short texts of one session, however many it sends at once, hold up what others wait for by
one piece, and take at most ``1 / (1 + PAUSE)`` of the loop's time. Work that nobody waits for is
never delayed: the pause begins after the piece, and only the same session's next piece meets it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

Result = TypeVar("Result")

PAUSE = 2.0
"""Length of the pause, in times of the work before it."""
LEAST_S = 0.001
"""Work that is over sooner is followed by no pause."""


class FairScheduler:
    """Takes the sessions' short work in turn."""

    def __init__(self) -> None:
        self._turn_of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By session that pauses, or has work that waits. Work itself is never interrupted, so it
        needs no lock.
        """

    async def run(self, session_id: str, work: Callable[[], Result]) -> Result:
        """Return the result of a function, called when the session's share allows it."""
        turn = self._turn_of.get(session_id)
        if turn is not None:
            await turn.acquire()
        began = time.perf_counter()
        try:
            return work()
        finally:
            took_s = time.perf_counter() - began
            if took_s >= LEAST_S:
                if turn is None:
                    turn = self._turn_of[session_id] = asyncio.Lock()
                    await turn.acquire()  # at once: nobody else has it
                asyncio.get_running_loop().call_later(PAUSE * took_s, turn.release)
            elif turn is not None:
                turn.release()
