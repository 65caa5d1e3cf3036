"""Record an attempt on a node: its worker asks, the driver stores.

Invariant: a call returns once the driver has made it durable. The driver takes a worker's calls in
their order, also those whose caller was cancelled: they are only ever taken by ``take_calls``.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from runners.records.record import RolloutRecord
from runners.records.session_summary import SessionSummary
from runners.services.ray_workers.errors import WorkerError
from runners.system.processes.ledger import ResourceKind


class RecorderCall(NamedTuple):
    """A call of the driver's recorder."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class RemoteRecorder:
    """The ``RolloutRecorder`` of a node."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._numbers = itertools.count()
        self._calls: list[RecorderCall] = []
        self._called = asyncio.Event()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._given_up = False

    async def register(self, kind: ResourceKind, name: str) -> None:
        """Register a resource that is about to be made; if that fails, unregister it again."""
        try:
            await self._call("register", kind, name)
        except BaseException:  # a cancelled caller: the driver registers it all the same
            self._start("unregister", kind, name)
            raise

    async def unregister(self, kind: ResourceKind, name: str) -> None:
        """Remove a resource that is gone."""
        await self._call("unregister", kind, name)

    async def put_rollout(self, record: RolloutRecord) -> None:
        """Write one attempt, new or again, with the node it ran on."""
        await self._call("put_rollout", self.with_node(record))

    async def event(self, kind: str, data: dict[str, Any]) -> None:
        """Record an event."""
        await self._call("event", kind, data)

    async def session_summary(self, session_id: str) -> SessionSummary:
        """Return the summary of a session's stored turns."""
        found: SessionSummary = await self._call("session_summary", session_id)
        return found

    async def repository(self, commit: str) -> bytes:
        """Return the archive of the driver's repository at a commit."""
        archive: bytes = await self._call("repository", commit)
        return archive

    def with_node(self, record: RolloutRecord) -> RolloutRecord:
        """Return the record with the name of this node."""
        return replace(record, extra={**record.extra, "node": self._node})

    async def flush(self) -> None:
        """Wait until the driver has answered every call."""
        if self._answers:
            await asyncio.wait(list(self._answers.values()))

    async def take_calls(self, timeout_s: float) -> list[RecorderCall]:
        """Return the calls since the last time, as soon as there is one; none after a time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._called.wait()
        self._called.clear()
        calls, self._calls = self._calls, []
        return calls

    def answer(self, number: int, value: Any) -> None:
        """End a call with the driver's answer: a value, or an exception to raise."""
        answer = self._answers.pop(number, None)
        if answer is None:  # given up
            return
        if isinstance(value, BaseException):
            answer.set_exception(value)
        else:
            answer.set_result(value)

    def give_up(self) -> None:
        """End every call, in progress or later: the driver does not answer any more."""
        self._given_up = True
        for number in list(self._answers):
            self.answer(number, WorkerError("the driver did not answer"))

    async def _call(self, method: str, *arguments: object) -> Any:
        # A call that was begun is answered although its caller is cancelled.
        return await asyncio.shield(self._start(method, *arguments))

    def _start(self, method: str, *arguments: object) -> asyncio.Future[Any]:
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        answer.add_done_callback(_read_error)
        self._answers[number] = answer
        if self._given_up:
            self.give_up()
        self._calls.append(RecorderCall(number, method, arguments))
        self._called.set()
        return answer


def _read_error(answer: asyncio.Future[Any]) -> None:
    """Read an exception, or asyncio reports one that nobody waited for."""
    if not answer.cancelled():
        answer.exception()
