"""How hard a service is leant on: a rate, a number in flight, and the pause before another try.

Invariant: whoever asked first goes first; one who leaves takes nothing from the others. Time is the
event loop's.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

DECREASE = 0.5
"""What a signal of overload leaves of the number in flight (TCP's halving)."""

GAIN_SHARE = 16
"""The usual additive increase per round trip is this part of the most: half is regained in eight.
"""

SIGNAL_S = 1.0
"""Refusals this close together are one signal, however short a round trip."""

BACKOFF_S = 0.25
BACKOFF_MAX_S = 8.0


class TokenBucket:
    """A rate limit: ``burst`` at once, then ``rate_per_s``; None: no limit.

    The virtual scheduling form of the leaky bucket (GCRA, ITU-T I.371): one time instead of a count
    of tokens that rounding would wear away.
    """

    def __init__(self, rate_per_s: float | None, *, burst: float = 1.0) -> None:
        if burst < 1 or (rate_per_s is not None and rate_per_s <= 0):
            raise ValueError(f"no token would ever come: rate {rate_per_s}, burst {burst}")
        self._interval_s = 1 / rate_per_s if rate_per_s else 0.0
        self._saved_s = (burst - 1) * self._interval_s
        self._due = float("-inf")
        """When the next token comes, were the bucket never full."""
        self._line = asyncio.Lock()
        """Wakes those who wait in the order of their coming."""

    async def take(self) -> None:
        """Return when it is the caller's turn; one that is cancelled takes no token."""
        if not self._interval_s:
            return
        async with self._line:
            now = asyncio.get_running_loop().time()
            due = max(self._due, now - self._saved_s)
            await asyncio.sleep(due - now)
            self._due = due + self._interval_s


class Admission:
    """How many may be in flight: at most ``most``, fewer while the service pushes back.

    Additive increase, multiplicative decrease, which shares a service fairly with others who do the
    same (Chiu & Jain 1989). A decrease starts from what was in flight since the one before, because
    a limit that nobody reached held nobody back.
    """

    def __init__(self, most: int, *, adaptive: bool, gain: float | None = None) -> None:
        """``gain`` is added per round trip; None: a sixteenth of ``most``, at least 1."""
        if most < 1:
            raise ValueError(f"nothing could ever be in flight: {most}")
        self._most = most
        self._adaptive = adaptive
        self._window = float(most)
        self._gain = max(1.0, most / GAIN_SHARE) if gain is None else gain
        self._in_flight = 0
        self._peak = 0
        """Most in flight since the last decrease."""
        self._older = 0
        """Still in flight since before the last decrease: what they tell, it has answered."""
        self._decreased_at = float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """How many may be in flight now."""
        return int(self._window)

    @property
    def in_flight(self) -> int:
        """How many are in flight; for a while after a decrease more than ``limit``."""
        return self._in_flight

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Be in flight inside this context."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    def record_pushback(self) -> None:
        """Take note that the service has too much to do: one decrease per round trip and second,
        however many refusals.
        """
        now = asyncio.get_running_loop().time()
        if not self._adaptive or self._older or now - self._decreased_at < SIGNAL_S:
            return
        self._window = max(1.0, DECREASE * min(self._window, self._peak))
        self._decreased_at = now
        self._older = self._peak = self._in_flight

    def record_success(self) -> None:
        """Take note that a call was served: as many as may be in flight are a round trip."""
        self._window = min(float(self._most), self._window + self._gain / self._window)
        self._admit()

    async def _enter(self) -> None:
        if self._in_flight < self.limit:  # nobody waits while there is room
            self._begin()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was admitted in the same moment
                self._leave()
            raise

    def _begin(self) -> None:
        self._in_flight += 1
        self._peak = max(self._peak, self._in_flight)

    def _leave(self) -> None:
        self._in_flight -= 1
        self._older = max(0, self._older - 1)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._in_flight < self.limit:
            turn = self._waiting.popleft()
            if not turn.cancelled():
                self._begin()
                turn.set_result(None)


def backoff_s(failures: int) -> float:
    """Return how long to wait after so many failures: exponential, with full jitter.

    Uniform from 0 to a cap that doubles, so that those who failed together do not come back
    together (Brooker, "Exponential Backoff And Jitter", 2015).
    """
    return random.uniform(0.0, min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** (failures - 1)))
