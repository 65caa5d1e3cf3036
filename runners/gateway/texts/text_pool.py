"""Processes that work on long texts, so that the gateway's event loop never does.

The first one starts when the first long text comes; from then on one more than are busy is kept
ready, up to the limit. A session has one text at work at a time, and those that wait are served in
turn, so no session can take more than its share. A process that dies or is late is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from conf.errors import AgentrlError, ExitCode
from conf.sections.gateway import ControlText, GatewayLimitsConfig
from runners.gateway.refusal import OverLimit, RefusalKind, Refused
from runners.gateway.texts.text_worker import LENGTH_BYTES, encode_message
from runners.system.processes import child_environment

logger = logging.getLogger(__name__)

START_S = 120.0
"""Deadline of a start. It takes a second or two; a busy machine takes longer."""

TRIES = 2
"""Processes that a job may take along: the first one may have died of what came before, or of a
limit on CPU time that the gateway was started with.
"""

PIPE_BYTES = 1 << 20


class TextFailed(Exception):
    """Raised for a text whose work was ended: too late, too much memory, or nothing that can be
    sent back.
    """


class TextWorkerError(AgentrlError):
    """No process for long texts can be started."""

    exit_code = ExitCode.SERVICE_GONE


class _Died(Exception):
    """Raised if the process ended instead of answering."""


class _Worker:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, settings: dict[str, Any]) -> _Worker:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "runners.gateway.texts.text_worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(),
            limit=PIPE_BYTES,
        )
        worker = cls(process)
        try:
            async with asyncio.timeout(START_S):
                await worker.ask(settings)
        except BaseException:
            await worker.end()
            raise
        return worker

    async def ask(self, message: Any, body: Sequence[bytes] = ()) -> Any:
        """Send a message and return the answer; raises _Died. ``body`` is sent as it is: to copy
        megabytes into the message would hold up the loop.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.writelines([encode_message(message, sum(map(len, body))), *body])
            await stdin.drain()
            head = await stdout.readexactly(2 * LENGTH_BYTES)
            return marshal.loads(await stdout.readexactly(int.from_bytes(head[:LENGTH_BYTES])))
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise _Died from error

    async def end(self) -> None:
        """Kill it and wait until it is gone."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class TextPool:
    """The processes of one gateway."""

    def __init__(
        self,
        tokenizer: Path | None,
        renderer: str,
        control_text: ControlText,
        limits: GatewayLimitsConfig,
    ) -> None:
        """Remember what they need; nothing is started before the first job.

        ``tokenizer`` None: they parse requests only.
        """
        self._settings = {
            "tokenizer": None if tokenizer is None else str(tokenizer),
            "renderer": renderer,
            "control_text": control_text,
            "limits": limits.model_dump(),
        }
        self._limits = limits
        self._ready: asyncio.Queue[_Worker | AgentrlError] = asyncio.Queue()
        self._workers: set[_Worker] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._turn_of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By session: it has one job at a time."""

    @property
    def pids(self) -> list[int]:
        """Processes that run."""
        return [worker.process.pid for worker in self._workers]

    async def run(self, session_id: str, job: dict[str, Any], body: Sequence[bytes] = ()) -> Any:
        """Return the result of a job; ``body``: that of the request, if the job is about one.

        Raises Refused, TextFailed or TextWorkerError. A caller that is cancelled leaves at once,
        but the job keeps its session's turn until it ends: requests that are sent and given up
        would otherwise take all processes.
        """
        turn = self._turn_of.setdefault(session_id, asyncio.Lock())
        await turn.acquire()
        work = asyncio.create_task(self._run(job, body), name=f"text-{session_id}")
        self._jobs.add(work)

        def on_done(task: asyncio.Task[Any]) -> None:
            self._jobs.discard(task)
            turn.release()
            if not task.cancelled():
                task.exception()  # marks it as retrieved, if the caller has left

        work.add_done_callback(on_done)
        return await asyncio.shield(work)

    async def close(self) -> None:
        """End all processes."""
        tasks = [*self._jobs, *self._starts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in list(self._workers):
            await self._end(worker)

    async def _run(self, job: dict[str, Any], body: Sequence[bytes]) -> Any:
        for _ in range(TRIES):
            worker = await self._take()
            try:
                async with asyncio.timeout(self._limits.text_s):
                    answer = await worker.ask(job, body)
            except _Died:
                await self._end(worker)
                continue
            except TimeoutError:
                await self._end(worker)
                raise TextFailed(f"it takes more than {self._limits.text_s:g} s") from None
            except BaseException:
                await self._end(worker)
                raise
            self._ready.put_nowait(worker)
            return _read_answer(answer)
        raise TextFailed("the process that works on it dies of it")

    async def _take(self) -> _Worker:
        """Return a process that is ready, and see to it that there is one for the next job."""
        if self._ready.empty():
            self._start_another()
        found = await self._ready.get()
        if isinstance(found, AgentrlError):
            raise found
        if self._ready.empty():
            self._start_another()
        return found

    def _start_another(self) -> None:
        if len(self._workers) + len(self._starts) < self._limits.text_workers:
            task = asyncio.create_task(self._start(), name="text-worker-start")
            self._starts.add(task)
            task.add_done_callback(self._starts.discard)

    async def _start(self) -> None:
        began = time.monotonic()
        try:
            worker = await _Worker.start(self._settings)
        except (OSError, _Died, TimeoutError) as error:
            logger.error("no process for long texts: %s", type(error).__name__, exc_info=error)
            if not self._workers:  # nobody else will serve those who wait
                self._ready.put_nowait(
                    TextWorkerError(
                        f"the gateway cannot start a process for long texts: {error!r}; "
                        "its log has the reason"
                    )
                )
            return
        logger.info("a process for long texts is ready after %.1f s", time.monotonic() - began)
        self._workers.add(worker)
        self._ready.put_nowait(worker)

    async def _end(self, worker: _Worker) -> None:
        self._workers.discard(worker)
        await worker.end()


def _read_answer(answer: dict[str, Any]) -> Any:
    if "refused" in answer:
        over, kind, message, param = answer["refused"]
        raise (OverLimit if over else Refused)(RefusalKind(kind), message, param=param)
    if "failed" in answer:
        raise TextFailed(answer["failed"])
    return answer["done"]
