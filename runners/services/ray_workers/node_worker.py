"""Run attempts on one worker of the cluster, from the driver, and answer what it asks.

Invariant: an attempt ends with NodeLost when its worker is lost: when it is gone, which Ray tells,
or hangs. No later call of a lost worker is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from conf.errors import AgentrlError, error_text
from runners.rollouts.attempt import being_cancelled
from runners.rollouts.contract import AttemptResult, RolloutSpec
from runners.services.ray_workers.errors import ExecutorError, NodeLost, WorkerError
from runners.services.ray_workers.remote_recorder import RecorderCall
from runners.services.ray_workers.worker import WorkerSettings, identity
from runners.system.diagnostics import AttemptProgress

SILENCE_S = 60.0
"""A worker answers each second; one that does not for so long has an event loop that hangs."""
PREPARE_S = 300.0
"""Time from a worker's start to its readiness: a Python starts, sandboxes are tried."""
CLOSE_S = 20.0
"""Time for a worker to remove what it has made."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of the cluster."""

    node_id: str
    name: str
    """Unique in the cluster."""
    address: str


class RemoteWorker(Protocol):
    """A ``Worker`` on a node."""

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of it; raises AgentrlError: what the method raised, or NodeLost."""
        ...

    def kill(self) -> None:
        """End it at once; every call in progress raises NodeLost."""
        ...


class NodeWorker:
    """A worker that was started on a node."""

    def __init__(
        self,
        node: NodeInfo,
        remote: RemoteWorker,
        answer: Callable[[str, RecorderCall], Awaitable[Any]],
        on_room: Callable[[], None],
        *,
        silence_s: float = SILENCE_S,
    ) -> None:
        """``answer`` does what the worker asks; ``on_room`` is called when an attempt has ended;
        silent for ``silence_s``, the worker is lost.
        """
        self.name = node.name
        self.attempts: dict[str, AttemptProgress] = {}
        """Those that it runs, by session."""
        self._remote = remote
        self._answer = answer
        self._on_room = on_room
        self._silence_s = silence_s
        self._answers: list[tuple[int, Any]] = []
        """Answers that it does not have yet, by the numbers of its calls."""
        self._sending: set[asyncio.Task[None]] = set()
        self._lost: asyncio.Future[NodeLost] = asyncio.get_running_loop().create_future()

    async def prepare(self, settings: WorkerSettings) -> dict[str, str]:
        """Get it ready; returns what its sandboxes guarantee.

        Raises NodeLost if it is gone meanwhile, and ExecutorError if it cannot work there.
        """
        try:
            async with asyncio.timeout(PREPARE_S):
                theirs = await self._remote.call("identity")
                for part, here in identity().items():
                    if theirs[part] != here:
                        raise ExecutorError(
                            f"another {part} ({theirs[part]}) than the driver's ({here}): install "
                            "the same on every node"
                        )
                guarantees: dict[str, str] = await self._remote.call("prepare", settings)
        except TimeoutError as error:
            raise NodeLost(f"its worker was not ready after {PREPARE_S:g} s") from error
        return guarantees

    async def run(
        self,
        spec: RolloutSpec,
        number: int,
        progress: AttemptProgress,
        *,
        queued_s: float,
        cancel_s: float,
    ) -> AttemptResult:
        """Run an attempt; raises NodeLost, and what the worker raised.

        If this is cancelled, so is the attempt, whose end is waited for ``cancel_s``.
        """
        session_id = progress.session_id
        running = asyncio.create_task(self._remote.call("run", spec, number, queued_s))
        running.add_done_callback(lambda _: self._end(session_id))
        self.attempts[session_id] = progress
        progress.where = self.name
        try:
            result: AttemptResult | None = await asyncio.shield(running)
        except NodeLost:
            raise await asyncio.shield(self._lost) from None
        except asyncio.CancelledError:
            with suppress(AgentrlError, TimeoutError):
                async with asyncio.timeout(cancel_s):
                    await self._remote.call("cancel", session_id)
            raise
        if result is None:
            raise WorkerError("its worker was closed")
        return result

    async def follow(self) -> NoReturn:
        """Take what it says until it is lost, and then raise NodeLost."""
        while True:
            stages, calls = await self._poll()
            for session_id, stage in stages.items():
                progress = self.attempts.get(session_id)
                if progress is not None and stage not in ("", progress.stage):
                    progress.enter(stage)
            for call in calls:
                answering = asyncio.create_task(self._answer_call(call))
                self._sending.add(answering)
                answering.add_done_callback(self._sending.discard)
                if call.method != "repository":  # which takes long, and needs no order
                    await answering

    def lose(self, error: NodeLost) -> None:
        """End it and, with an error that all of them raise, its attempts."""
        self._remote.kill()
        for sending in self._sending:
            sending.cancel()
        self._lost.set_result(error)

    async def close(self) -> None:
        """Have it remove everything that it made; raises AgentrlError and TimeoutError."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._remote.call("close")
        finally:
            self._remote.kill()

    def _end(self, session_id: str) -> None:
        del self.attempts[session_id]
        self._on_room()

    async def _poll(self) -> tuple[dict[str, str], list[RecorderCall]]:
        answers, self._answers = self._answers, []
        polling = asyncio.create_task(self._remote.call("poll", answers))
        try:
            for _ in range(2):  # twice: this process may itself have stood still
                if (await asyncio.wait([polling], timeout=self._silence_s / 2))[0]:
                    found: tuple[dict[str, str], list[RecorderCall]] = polling.result()
                    return found
        finally:
            polling.cancel()
        raise NodeLost(f"its worker did not answer for {self._silence_s:g} s")

    async def _answer_call(self, call: RecorderCall) -> None:
        """Do what the worker asks; what that raises is raised there."""
        answer: Any
        try:
            answer = await self._answer(self.name, call)
        except (Exception, asyncio.CancelledError) as error:  # a request handler
            if isinstance(error, asyncio.CancelledError) and being_cancelled():
                raise
            known = isinstance(error, AgentrlError | asyncio.CancelledError | TimeoutError)
            answer = error if known else WorkerError(f"{type(error).__name__}: {error_text(error)}")
        self._answers.append((call.number, answer))
