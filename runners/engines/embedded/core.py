"""The whole engine in one object: a scheduler on a worker thread, driven from asyncio.

Invariant: the scheduler is touched only on the worker, between two steps; callers post commands and
await results. So no array needs a lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from runners.engines.contract import EngineError, Generation, SamplingParams, TokenIds
from runners.engines.embedded.model import Qwen3Moe
from runners.engines.embedded.request import Request, RequestResult, RequestSampling, load_tokenizer
from runners.engines.embedded.rounding import EXACT, Precision, load_rounded
from runners.engines.embedded.scheduler import Scheduler
from runners.engines.embedded.weights import ModelWeights
from runners.records.record import IdArray, find_spans

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class SchedulerLoad:
    """A snapshot of what the engine is doing."""

    running: int
    waiting: int
    used_tokens: int
    cached_tokens: int
    steps: int
    generated_tokens: int
    planned_tokens: dict[int, int]
    """As ``Scheduler.planned_tokens``."""


class EngineCore:
    """An in-process engine. It is a complete ``Engine``, so tests use it without HTTP."""

    def __init__(
        self,
        model_path: Path,
        *,
        max_running_requests: int = 64,
        cache_tokens: int = 131_072,
        max_context_tokens: int = 2048,
        weight_version: int = 0,
        tokenizer: Path | None = None,
        threads: int | None = None,
        precision: Precision = EXACT,
    ) -> None:
        """Load the model and start the worker.

        ``max_running_requests`` bounds the batch, ``cache_tokens`` the tokens whose keys and values
        are kept (running rows and prefix cache together), ``max_context_tokens`` prompt + output.
        ``threads`` sets torch's thread count, for the whole process. Raises EngineError if model or
        tokenizer cannot be loaded, or the model has fewer positions than the context.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        self.model_path = model_path
        self.max_running_requests = max_running_requests
        self.max_context_tokens = max_context_tokens
        self.cache_tokens = cache_tokens
        self.tokenizer_path = tokenizer
        self.tokenizer = None if tokenizer is None else load_tokenizer(tokenizer)
        self.precision = precision
        weights = self._load(model_path)
        self.config = weights.config
        if max_context_tokens > self.config.max_position:
            raise EngineError(
                f"max_context_tokens={max_context_tokens} exceeds the model's "
                f"max_position_embeddings={self.config.max_position}; lower it"
            )
        self._scheduler = Scheduler(
            Qwen3Moe(weights, max_context_tokens),
            max_running_requests=max_running_requests,
            cache_tokens=cache_tokens,
            max_context_tokens=max_context_tokens,
            weight_version=weight_version,
            tokenizer=self.tokenizer,
        )
        self.paused = False
        self.failure: Exception | None = None
        """The exception that ended the worker; None while it lives."""
        self._live: set[str] = set()
        self._pending: set[Future[Any]] = set()
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    @property
    def weight_version(self) -> int:
        """The version of the weights in use."""
        return self._scheduler.weight_version

    @property
    def steps(self) -> int:
        """Forward passes so far: grows while the engine makes progress."""
        return self._scheduler.steps

    # --- requests -----------------------------------------------------------------------------

    async def run(
        self,
        rid: str,
        prompt: IdArray,
        sampling: RequestSampling,
        routing_start: int | None = None,
        logprob_start: int | None = None,
        plan: IdArray | None = None,
    ) -> RequestResult:
        """Run one request to its end; ``prompt`` is int32 [n]. Cancelling the call aborts it.

        ``plan``: versions of the weights that its tokens wait for, see ``Request.plan``.

        Raises EngineError 400 for a request that cannot be run, and for an ``rid`` in use.
        """
        self._check(prompt, sampling)
        if rid in self._live:
            raise EngineError(f"Duplicate request ID detected: {rid}", status=400)
        now = time.monotonic()
        request = Request(rid, prompt, sampling, routing_start, logprob_start, now, plan=plan)
        self._live.add(rid)
        try:
            self._post(lambda: self._scheduler.waiting.append(request), request.result)
            # shield: cancelling the future would make the scheduler's set_result raise
            return await asyncio.shield(asyncio.wrap_future(request.result))
        except asyncio.CancelledError:
            with suppress(EngineError):  # a stopped engine has nothing left to abort
                self._post(lambda: self._scheduler.abort(lambda other: other == rid))
            raise
        finally:
            self._live.discard(rid)

    async def generate(
        self, input_ids: TokenIds, params: SamplingParams, *, rid: str
    ) -> Generation:
        """Sample a continuation; see ``Engine.generate``."""
        sampling = RequestSampling(
            max_new_tokens=params.max_new_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            stop=params.stop,
            stop_ids=tuple({*params.stop_token_ids, *self.config.eos_token_ids}),
            seed=params.sampling_seed,
        )
        prompt = np.asarray(input_ids, dtype=np.int32)
        done = await self.run(rid, prompt, sampling, params.routing_start)
        return Generation(
            output_ids=done.output_ids,
            logprobs=done.logprobs,
            finish_reason=done.finish_reason["type"],
            matched=done.finish_reason.get("matched"),
            prompt_tokens=len(input_ids),
            cached_tokens=done.cached_tokens,
            weight_version=done.weight_version,
            weight_spans=find_spans(done.weight_versions),
            engine_s=done.total_s,
            routing=None if done.routing is None else done.routing.astype(np.int32).ravel(),
            queue_s=done.queue_s,
        )

    async def abort(self, matches: Callable[[str], bool]) -> None:
        """Abort the requests whose rid matches; return when they are ended."""
        await self._call(lambda: self._scheduler.abort(matches))

    # --- control ------------------------------------------------------------------------------

    async def update_weights(self, path: Path, version: int) -> None:
        """Switch to other weights; see ``Engine.update_weights``."""
        await self.switch_weights(path, version)

    async def switch_weights(
        self, path: Path, version: int | None, *, retract: bool = False
    ) -> int:
        """Switch to other weights of the same shape, between two steps; generation goes on with the
        present ones while the others are loaded.

        With ``retract`` it also goes on while the new weights compute the keys of running requests
        again; if the engine is paused, those go back into the queue at once instead. Without, they
        keep the keys of the old weights. Returns the number of requests that were running in the
        moment of the change. Without a ``version`` the present one stays. Raises EngineError 400,
        and then nothing has changed.
        """
        model = await asyncio.to_thread(self._load_model, path)
        changed: Future[int] = Future()

        def finish(running: int) -> None:
            self.model_path = path
            changed.set_result(running)

        def switch() -> None:
            scheduler, running = self._scheduler, self._scheduler.rows.used
            if retract:
                scheduler.begin_change(model, version, finish)
                if self.paused:
                    scheduler.hasten_change()
            else:
                scheduler.replace_model(model, version)
                finish(running)

        self._post(switch, changed)
        # shield: as in ``run``
        return await asyncio.shield(asyncio.wrap_future(changed))

    async def flush_cache(self) -> bool:
        """Empty the prefix cache, unless requests run or are about to; return whether it was."""

        def flush() -> bool:
            scheduler = self._scheduler
            free = not scheduler.rows.used if self.paused else scheduler.idle
            if free:
                scheduler.flush()
            return free

        return await self._call(flush)

    async def pause(self, mode: str) -> None:
        """Stop generating. ``mode`` is for the running requests: ``abort`` ends them, ``retract``
        puts them back into the queue, ``in_place`` keeps them as they are.
        """

        def pause() -> None:
            self._scheduler.hasten_change()  # nothing is computed in a pause
            self.paused = True
            if mode == "abort":
                self._scheduler.abort(lambda rid: True)
            elif mode == "retract":
                self._scheduler.retract()

        await self._call(pause)

    async def resume(self) -> None:
        """Generate again after ``pause``."""

        def resume() -> None:
            self.paused = False

        await self._call(resume)

    async def load(self) -> SchedulerLoad:
        """Return a snapshot of the load."""

        def read() -> SchedulerLoad:
            scheduler = self._scheduler
            rows = scheduler.rows
            return SchedulerLoad(
                running=rows.used,
                waiting=len(scheduler.waiting),
                used_tokens=int(rows.length[: rows.used].sum()),
                cached_tokens=scheduler.cache.tokens,
                steps=scheduler.steps,
                generated_tokens=scheduler.generated_tokens,
                planned_tokens=dict(scheduler.planned_tokens),
            )

        return await self._call(read)

    async def healthy(self) -> bool:
        """Return whether the worker lives."""
        return self.failure is None and self._thread.is_alive()

    async def close(self) -> None:
        """Abort everything and end the worker."""
        await asyncio.to_thread(self.shut_down)

    def shut_down(self) -> None:
        """Abort everything and end the worker, outside of asyncio."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    # --- the worker ---------------------------------------------------------------------------

    def _post(self, command: Callable[[], None], answer: Future[Any] | None = None) -> None:
        """Let the worker run ``command`` before its next step.

        ``answer`` is resolved by the command, or failed when the worker ends: nobody waits forever.
        """
        with self._wake:
            if self._closing:
                raise self._stopped()
            if answer is not None:
                self._pending.add(answer)
                answer.add_done_callback(self._pending.discard)
            self._commands.append(command)
            self._wake.notify()

    async def _call(self, function: Callable[[], Answer]) -> Answer:
        answer: Future[Answer] = Future()
        self._post(lambda: answer.set_result(function()), answer)
        # shield: as in ``run``
        return await asyncio.shield(asyncio.wrap_future(answer))

    def _work(self) -> None:
        try:
            while self._wait():
                if not self.paused:
                    self._scheduler.step()
        except Exception as error:  # the thread's top: every caller gets the error
            traceback.print_exc()
            self.failure = error
        with self._wake:
            self._closing = True
        for answer in list(self._pending):
            answer.set_exception(self._stopped())

    def _wait(self) -> bool:
        """Run posted commands, and sleep while there is nothing to do.

        Returns True when there is a step to do, False when the engine is closing.
        """
        while True:
            with self._wake:
                while not (self._commands or self._closing or self._has_work()):
                    self._wake.wait()
                if self._closing:
                    return False
            while self._commands:
                self._commands.popleft()()
            if self._has_work():
                return True

    def _load_model(self, path: Path) -> Qwen3Moe:
        weights = self._load(path)
        if weights.config != self.config:
            raise EngineError(f"{path} holds a model of another shape", status=400)
        return Qwen3Moe(weights, self.max_context_tokens)

    def _load(self, directory: Path) -> ModelWeights:
        return load_rounded(directory, self.precision)

    def _has_work(self) -> bool:
        return not self.paused and self._scheduler.has_work

    def _stopped(self) -> EngineError:
        return EngineError(f"the engine has stopped ({self.failure or 'closed'})", status=500)

    def _check(self, prompt: IdArray, sampling: RequestSampling) -> None:
        limit, length, new = self.max_context_tokens, len(prompt), sampling.max_new_tokens
        if not length:
            raise EngineError(
                "The input is empty: input_ids must hold at least one token.", status=400
            )
        if int(prompt.min()) < 0 or int(prompt.max()) >= self.config.vocab_size:
            raise EngineError(
                "The input_ids contain values outside the vocabulary "
                f"(0 to {self.config.vocab_size - 1}).",
                status=400,
            )
        if length >= limit:
            raise EngineError(
                f"The input ({length} tokens) is longer than the model's context length "
                f"({limit} tokens).",
                status=400,
            )
        if length + new > limit:
            raise EngineError(
                "Requested token count exceeds the model's maximum context length of "
                f"{limit} tokens. You requested a total of {length + new} tokens: {length} tokens "
                f"from the input messages and {new} tokens for the completion. Please reduce the "
                "number of tokens in the input messages or the completion to fit within the limit.",
                status=400,
            )
        if length + new > self.cache_tokens:
            raise EngineError(
                f"The request needs {length + new} tokens of KV cache, the engine has "
                f"cache_tokens={self.cache_tokens}.",
                status=400,
            )
        if sampling.stop and self.tokenizer is None:
            raise EngineError(
                f"stop={list(sampling.stop)!r} is unavailable without a tokenizer; start the "
                "engine with one or use stop_token_ids.",
                status=400,
            )
