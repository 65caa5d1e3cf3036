"""An engine that the gateway may lean on: limited, tried again in place, and paused for new
weights.

Invariants: what the caller gets is a whole generation of one weight version, never one that was cut
off. A deadline counts the time at the engine and between tries, never a wait for our own limits or
for a pause. Each try has a request id of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from runners.concurrency.limits import Admission, TokenBucket, backoff_s
from runners.engines.contract import Engine, EngineError, Generation, SamplingParams

QUEUED_SHARE = 0.25
"""A call that waited in the engine's queue for so much of its deadline says that too many are
there: they wait better here, where it costs no deadline.
"""


@dataclass(slots=True)
class EngineCallCounters:
    """What calls of an engine met; kept by the caller, counted by the engine."""

    engine_retries: int = 0
    """Tries after failures that may pass."""
    pushed_back: int = 0
    """Times that the engine had too much to do: it refused, or its queue was long."""
    drained: int = 0
    """Generations cut off for new weights, and sampled again."""


@dataclass(frozen=True, slots=True)
class PauseResult:
    """What a pause did with the generations that were in flight."""

    finished: int
    aborted: int
    """They are sampled again after the pause."""


class _Drained(Exception):
    """A generation was cut off for a pause."""


class ResilientEngine:
    """An ``Engine`` behind limits; all calls on one event loop."""

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
        """Deadlines of the tries at the engine; whether a pause has moved it to now."""
        self._aborted = 0
        """Tries that a pause has ended."""
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def generate(
        self,
        input_ids: list[int],
        params: SamplingParams,
        *,
        rid: str,
        counters: EngineCallCounters | None = None,
    ) -> Generation:
        """Sample a continuation, trying again what may pass; raises EngineError.

        ``rid`` is what the ids of all tries begin with. Cancelling the call aborts it at the
        engine.
        """
        counters = EngineCallCounters() if counters is None else counters
        clock = asyncio.get_running_loop().time
        left, tries, failures, dropped = self._deadline_s, 0, 0, False
        while True:
            async with self._admitted():
                began, tries = clock(), tries + 1
                try:
                    # of equal length: SGLang aborts every id that begins with the one it is told
                    generation = await self._once(input_ids, params, f"{rid}-{tries:03}", left)
                except _Drained:
                    counters.drained += 1
                    continue
                except EngineError as error:
                    failure = error
                else:
                    self._served(generation, counters)
                    return generation
                if failure.pushed_back:
                    counters.pushed_back += 1
                    self._admission.record_pushback()
            left -= clock() - began
            if failure.dropped and not dropped:
                dropped = True  # an idle connection that was closed: once more, at once
            else:
                failures += 1
                pause = failure.retry_after_s + backoff_s(failures)
                if not failure.retryable or failures >= self._attempts or pause >= left:
                    raise failure
                await asyncio.sleep(pause)
                left -= pause
            counters.engine_retries += 1

    async def pause(self, deadline_s: float) -> PauseResult:
        """Begin no call from now on, until ``resume``; return when none is in flight.

        Those in flight get ``deadline_s`` to finish, then they are aborted; their callers wait for
        the end of the pause and notice nothing. Cancelled, it leaves the engine paused.
        """
        self._open.clear()
        in_flight, aborted_before = len(self._running), self._aborted
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            for limit in self._running:
                if not limit.expired():
                    self._running[limit] = True
                    limit.reschedule(asyncio.get_running_loop().time())
            await self._idle.wait()
        aborted = self._aborted - aborted_before
        return PauseResult(finished=in_flight - aborted, aborted=aborted)

    def resume(self) -> None:
        """Begin calls again; those that waited come in their order."""
        self._open.set()

    async def update_weights(self, path: Path, version: int) -> None:
        """See ``Engine.update_weights``."""
        await self._engine.update_weights(path, version)

    async def healthy(self) -> bool:
        """Whether the engine answers."""
        return await self._engine.healthy()

    async def close(self) -> None:
        """See ``Engine.close``."""
        await self._engine.close()

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Wait for whatever limits apply."""
        async with self._admission.slot():
            await self._bucket.take()
            while not self._open.is_set():  # it may close again before we run
                await self._open.wait()
            yield

    async def _once(
        self, input_ids: list[int], params: SamplingParams, rid: str, left_s: float
    ) -> Generation:
        """Try once; raises EngineError for whatever is no whole generation, or _Drained."""
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

    def _served(self, generation: Generation, counters: EngineCallCounters) -> None:
        if generation.queue_s > QUEUED_SHARE * self._deadline_s:
            counters.pushed_back += 1
            self._admission.record_pushback()
        else:
            self._admission.record_success()
