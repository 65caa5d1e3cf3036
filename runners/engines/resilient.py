"""Put limits, retries and pauses around an engine.

Invariants: a call returns a whole generation of one weight version, never one that was cut off. Its
deadline counts time at the engine and between attempts, never a wait for our own limits or for a
pause. Each attempt has a request id of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from runners.concurrency.limits import Admission, TokenBucket, backoff_s
from runners.engines.contract import Engine, EngineError, Generation, SamplingParams, TokenIds

QUEUED_SHARE = 0.25
"""A call that waited this share of its deadline in the engine's queue counts as pushback: it should
wait here instead, where waiting costs no deadline.
"""


@dataclass(slots=True)
class EngineCallCounters:
    """Counters of the calls of one caller; the engine increments them."""

    engine_retries: int = 0
    """Attempts after a retryable failure."""
    pushed_back: int = 0
    """Times that the engine was overloaded: it refused, or its queue was long."""
    drained: int = 0
    """Generations that a pause aborted, and that were sampled again."""


@dataclass(frozen=True, slots=True)
class PauseResult:
    """The end of the generations that were in flight when a pause began."""

    finished: int
    aborted: int
    """Sampled again after the pause."""


class _Drained(Exception):
    """A pause aborted the generation."""


class ResilientEngine:
    """An ``Engine`` around another one; all calls come from one event loop.

    ``deadline_s`` bounds a call over all its attempts. ``bucket`` limits the rate of attempts,
    ``admission`` their number in flight.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        attempts: int,
        deadline_s: float,
        bucket: TokenBucket,
        admission: Admission,
    ) -> None:
        self._engine = engine
        self._attempts = attempts
        self._deadline_s = deadline_s
        self._bucket = bucket
        self._admission = admission
        self._running: dict[asyncio.Timeout, bool] = {}
        """Deadline of each attempt at the engine → whether a pause has moved it to now."""
        self._aborted = 0
        """Attempts that pauses have aborted."""
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def generate(
        self,
        input_ids: TokenIds,
        params: SamplingParams,
        *,
        rid: str,
        counters: EngineCallCounters | None = None,
    ) -> Generation:
        """Sample a continuation, retrying what is retryable; raises the last EngineError.

        ``rid`` is the prefix of the request ids of all attempts. Cancelling the call aborts it at
        the engine.
        """
        counters = EngineCallCounters() if counters is None else counters
        clock = asyncio.get_running_loop().time
        left, attempts, failures, dropped = self._deadline_s, 0, 0, False
        while True:
            async with self._admitted():
                began, attempts = clock(), attempts + 1
                try:
                    # padded, because SGLang aborts by prefix: r-1 would also abort r-10
                    generation = await self._attempt(
                        input_ids, params, f"{rid}-{attempts:03}", left
                    )
                except _Drained:
                    counters.drained += 1
                    continue
                except EngineError as error:
                    failure = error
                else:
                    self._adapt_limit(generation, counters)
                    return generation
                if failure.pushed_back:
                    counters.pushed_back += 1
                    self._admission.record_pushback()
            left -= clock() - began
            if failure.dropped and not dropped:
                dropped = True  # an idle connection that the server closed: retry once, at once
            else:
                failures += 1
                pause = failure.retry_after_s + backoff_s(failures)
                if not failure.retryable or failures >= self._attempts or pause >= left:
                    raise failure
                await asyncio.sleep(pause)
                left -= pause
            counters.engine_retries += 1

    async def pause(self, deadline_s: float) -> PauseResult:
        """Start no attempt until ``resume``; return when none is in flight.

        Those in flight get ``deadline_s`` to finish, then they are aborted; their callers wait for
        the end of the pause and get a new generation. Cancelling leaves the engine paused.
        """
        self._open.clear()
        in_flight, aborted_before = len(self._running), self._aborted
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            # an expired deadline cancels the call, which aborts it at the engine; the flag tells
            # ``_attempt`` that it was the pause
            for limit in self._running:
                if not limit.expired():
                    self._running[limit] = True
                    limit.reschedule(asyncio.get_running_loop().time())
            await self._idle.wait()
        aborted = self._aborted - aborted_before
        return PauseResult(finished=in_flight - aborted, aborted=aborted)

    def resume(self) -> None:
        """Start attempts again, in the order in which they waited."""
        self._open.set()

    async def close(self) -> None:
        """See ``Engine.close``."""
        await self._engine.close()

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Wait for the limits and for the end of a pause."""
        async with self._admission.slot():
            await self._bucket.take()
            while not self._open.is_set():  # it may be cleared again before this task wakes up
                await self._open.wait()
            yield

    async def _attempt(
        self, input_ids: TokenIds, params: SamplingParams, rid: str, left_s: float
    ) -> Generation:
        """Make one attempt; raises EngineError unless it gives a whole generation, or _Drained."""
        limit = asyncio.timeout(left_s)
        try:
            async with limit:
                self._running[limit] = False
                self._idle.clear()
                generation = await self._engine.generate(input_ids, params, rid=rid)
        except TimeoutError:
            if self._running[limit]:
                self._aborted += 1
                raise _Drained from None
            raise EngineError(
                f"the engine did not answer within {self._deadline_s:g} s", retryable=True
            ) from None
        finally:
            del self._running[limit]
            if not self._running:
                self._idle.set()
        if generation.finish_reason == "abort":
            raise EngineError("the engine aborted the generation", retryable=True)
        return generation

    def _adapt_limit(self, generation: Generation, counters: EngineCallCounters) -> None:
        if generation.queue_s > QUEUED_SHARE * self._deadline_s:
            counters.pushed_back += 1
            self._admission.record_pushback()
        else:
            self._admission.record_success()
