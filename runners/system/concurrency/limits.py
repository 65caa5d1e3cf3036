"""Rate and concurrency limits (AIMD), and the backoff before a retry.

Invariant: callers are admitted in the order in which they asked, and one that is cancelled uses up
nothing. Time is the event loop's.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

DECREASE = 0.5
"""Factor of the limit after a signal of overload (TCP halves as well)."""

GAIN_SHARE = 16
"""By default the limit grows per round trip by the maximum divided by this, so eight round trips
undo a decrease by half.
"""

SIGNAL_S = 1.0
"""Refusals this close together are one signal, even if round trips are shorter."""

BACKOFF_S = 0.25
BACKOFF_MAX_S = 8.0


class TokenBucket:
    """A rate limit: ``rate_per_s`` calls, at equal distances; None: no limit.

    The virtual scheduling form of the leaky bucket (GCRA, ITU-T I.371), without bursts. It keeps
    one time, not a fractional count of tokens, so rounding errors do not add up.
    """

    def __init__(self, rate_per_s: float | None) -> None:
        if rate_per_s is not None and rate_per_s <= 0:
            raise ValueError(f"no token would come: rate_per_s={rate_per_s}")
        self._interval_s = 1 / rate_per_s if rate_per_s else 0.0
        self._due = float("-inf")
        """Loop time of the next token."""
        self._lock = asyncio.Lock()
        """Wakes waiting callers in the order in which they came."""

    async def take(self) -> None:
        """Return when it is the caller's turn; a cancelled caller takes no token."""
        if not self._interval_s:
            return
        async with self._lock:
            now = asyncio.get_running_loop().time()
            due = max(self._due, now)
            await asyncio.sleep(due - now)
            self._due = due + self._interval_s


class Admission:
    """A limit on calls in flight: ``maximum``, and less while the service pushes back.

    Additive increase, multiplicative decrease (AIMD): clients that all do so share a service fairly
    (Chiu & Jain 1989). A decrease starts from the peak in flight since the last one: a limit that
    was never reached had no effect.
    """

    def __init__(self, maximum: int, *, adaptive: bool, gain: float | None = None) -> None:
        """``gain`` is added per round trip; None: a sixteenth of ``maximum``, at least 1."""
        if maximum < 1:
            raise ValueError(f"no call would be in flight: maximum={maximum}")
        self._maximum = maximum
        self._adaptive = adaptive
        self._window = float(maximum)
        self._gain = max(1.0, maximum / GAIN_SHARE) if gain is None else gain
        self._in_flight = 0
        self._peak = 0
        """Greatest number in flight since the last decrease."""
        self._older = 0
        """Calls in flight since before the last decrease: their refusals are the same signal."""
        self._decreased_at = float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Return the number of calls that may be in flight now."""
        return int(self._window)

    @property
    def in_flight(self) -> int:
        """Return the number in flight; after a decrease it may exceed ``limit`` for a while."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Return the number of calls that wait for a place."""
        return len(self._waiting)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a place and count as in flight inside this context."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    def record_pushback(self) -> None:
        """Decrease the limit because the service is overloaded.

        At most once per round trip and per ``SIGNAL_S``, however many calls are refused.
        """
        now = asyncio.get_running_loop().time()
        if not self._adaptive or self._older or now - self._decreased_at < SIGNAL_S:
            return
        self._window = max(1.0, DECREASE * min(self._window, self._peak))
        self._decreased_at = now
        self._older = self._peak = self._in_flight

    def record_success(self) -> None:
        """Increase the limit after a served call: by ``gain`` per ``limit`` calls, a round trip."""
        self._window = min(float(self._maximum), self._window + self._gain / self._window)
        self._admit()

    async def _enter(self) -> None:
        # a free place means that nobody waits: ``_admit`` runs whenever a place becomes free
        if self._in_flight < self.limit:
            self._begin()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # admitted at the same moment: give the place back
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
    """Return the seconds to wait after so many failures: exponential, with full jitter.

    Uniform from 0 to a cap that doubles each time, so that callers that failed together retry
    apart (Brooker, "Exponential Backoff And Jitter", 2015).
    """
    return random.uniform(0.0, min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** (failures - 1)))
