"""Put limits, retries and pauses around an engine.

Invariants: a call returns a whole generation, never one that was cut off; of one weight version,
unless a pause let it continue with other weights. Its deadline counts time at the engine and
between attempts, never a wait for our own limits or for a pause. Each attempt has a request id of
its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from runners.engines.continuation import (
    ABORTED,
    can_continue,
    close_part,
    continue_request,
    join_parts,
)
from runners.engines.contract import Engine, EngineError, Generation, SamplingParams, TokenIds
from runners.system.concurrency import Admission, TokenBucket, backoff_s

INTERRUPT_S = 10.0
"""An engine gets so long to return what it sampled of requests that it was asked to abort; then
they are given up.
"""
INTERRUPT_AGAIN_S = 0.5
"""Time until a request is aborted again: an engine ignores an abort that overtakes its request."""

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
    kept: int = 0
    """Continued after the pause from the tokens that they had."""


class _Drained(Exception):
    """A pause aborted the generation."""


@dataclass(eq=False, slots=True)
class _Attempt:
    """An attempt that is at the engine."""

    rid: str
    limit: asyncio.Timeout
    drained: bool = False
    """A pause has moved its deadline to now."""
    interrupted: bool = False
    """A pause has asked the engine to abort it, and takes what it sampled."""


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
        abort: Callable[[str], Awaitable[None]] | None = None,
        continue_aborted: bool = False,
    ) -> None:
        """``abort`` asks the engine to end a request with the tokens that it has; without it a
        pause keeps none. ``continue_aborted``: what the engine aborts by itself goes on from its
        tokens, because another program loads its weights (slime); otherwise it is a failure.
        """
        self._engine = engine
        self._abort = abort
        self._continue_aborted = continue_aborted
        self._attempts = attempts
        self._deadline_s = deadline_s
        self._bucket = bucket
        self._admission = admission
        self._running: set[_Attempt] = set()
        self._aborted = 0
        """Attempts that pauses have aborted."""
        self._kept = 0
        """Attempts whose tokens were kept by pauses."""
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
        parts: list[Generation] = []
        while True:
            async with self._admitted():
                began, attempts = clock(), attempts + 1
                prompt, rest = continue_request(input_ids, params, parts)
                try:
                    # padded, because SGLang aborts by prefix: r-1 would also abort r-10
                    generation = await self._attempt(prompt, rest, f"{rid}-{attempts:03}", left)
                except _Drained:
                    counters.drained += 1
                    continue
                except EngineError as error:
                    failure = error
                else:
                    if len(generation.output_ids) or generation.finish_reason != ABORTED:
                        parts.append(generation)
                    if generation.finish_reason == ABORTED:
                        left -= clock() - began
                        continue
                    self._adapt_limit(generation, counters)
                    return join_parts(parts)
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

    async def pause(self, deadline_s: float, *, keep: bool = False) -> PauseResult:
        """Start no attempt until ``resume``; return when none is in flight.

        Those in flight get ``deadline_s`` to finish, then they are aborted; their callers wait for
        the end of the pause and get a new generation, or with ``keep`` one that continues what was
        sampled. Cancelling leaves the engine paused.
        """
        self._open.clear()
        in_flight, aborted_before, kept_before = len(self._running), self._aborted, self._kept
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            if keep and self._abort is not None:
                await self._interrupt(self._abort)
            # an expired deadline cancels the call, which aborts it at the engine; the flag tells
            # ``_attempt`` that it was the pause
            for attempt in self._running:
                if not attempt.limit.expired():
                    attempt.drained = True
                    attempt.limit.reschedule(asyncio.get_running_loop().time())
            await self._idle.wait()
        aborted, kept = self._aborted - aborted_before, self._kept - kept_before
        return PauseResult(finished=in_flight - aborted - kept, aborted=aborted, kept=kept)

    async def _interrupt(self, abort: Callable[[str], Awaitable[None]]) -> None:
        """Ask the engine for what it has sampled of each attempt, for at most ``INTERRUPT_S``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(INTERRUPT_S):  # also of an engine that hears no abort
                while self._running:
                    for attempt in self._running:
                        attempt.interrupted = True
                    await asyncio.gather(*(abort(attempt.rid) for attempt in self._running))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(INTERRUPT_AGAIN_S):
                            await self._idle.wait()

    @property
    def admission(self) -> Admission:
        """Return the limit on calls in flight, to be read."""
        return self._admission

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
        """Make one attempt; raises EngineError unless it gives a whole generation, or one that a
        pause interrupted and that can be continued; _Drained if a pause ended it.
        """
        attempt = _Attempt(rid, asyncio.timeout(left_s))
        try:
            async with attempt.limit:
                self._running.add(attempt)
                self._idle.clear()
                generation = await self._engine.generate(input_ids, params, rid=rid)
        except TimeoutError:
            if attempt.drained:
                self._aborted += 1
                raise _Drained from None
            raise EngineError(
                f"the engine did not answer within {self._deadline_s:g} s", retryable=True
            ) from None
        finally:
            self._running.discard(attempt)
            if not self._running:
                self._idle.set()
        if generation.finish_reason != ABORTED:
            return generation
        interrupted = attempt.interrupted
        if not interrupted and not self._continue_aborted:
            raise EngineError("the engine aborted the generation", retryable=True)
        if interrupted or len(generation.output_ids):
            generation = close_part(generation, params)
        if generation.finish_reason != ABORTED:
            return generation
        continues = can_continue(generation, input_ids, params)
        if not interrupted and not (continues and len(generation.output_ids)):
            raise EngineError("the engine aborted the generation", retryable=True)
        if not continues:
            self._aborted += 1
            raise _Drained
        self._kept += interrupted
        return generation

    def _adapt_limit(self, generation: Generation, counters: EngineCallCounters) -> None:
        if generation.queue_s > QUEUED_SHARE * self._deadline_s:
            counters.pushed_back += 1
            self._admission.record_pushback()
        else:
            self._admission.record_success()
