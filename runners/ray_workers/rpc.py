"""A line between two processes of ours on one machine: each may ask the other, and answers.

One frame per message: eight bytes of length, then a pickle. Both ends are the same agentrl, and
nothing of it is kept. What an answer raises is raised where it was asked for (``trouble``).
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from runners.ray_workers.remote_errors import ExecutorError, Trouble, raised, trouble_of

_LENGTH = struct.Struct("!Q")

Answer = Callable[[str, tuple[Any, ...]], Awaitable[Any]]
"""Answers a question, its name and its arguments."""


class Line:
    """One end; ``serve`` reads it, for as long as anybody asks."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._cut = False

    async def ask(self, name: str, *arguments: Any) -> Any:
        """Ask the other end and return its answer; raises what it raised, and ExecutorError when
        the line is cut.
        """
        if self._cut:
            raise _gone()
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._send("ask", number, name, arguments)
            return await answer
        finally:
            self._asked.pop(number, None)

    async def serve(self) -> None:
        """Answer until the other end is gone or ``close``; what was asked fails then."""
        try:
            while True:
                head = await self._reader.readexactly(_LENGTH.size)
                body = await self._reader.readexactly(*_LENGTH.unpack(head))
                self._take(*pickle.loads(body))
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            self.close()

    def close(self) -> None:
        """Cut the line."""
        self._cut = True
        self._writer.close()
        for task in self._answering:
            task.cancel()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(_gone())

    def _take(self, kind: str, number: int, what: Any, arguments: tuple[Any, ...] = ()) -> None:
        if kind == "ask":
            task = asyncio.create_task(self._reply(number, what, arguments), name=f"answer-{what}")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        answer = self._asked.get(number)
        if answer is None or answer.done():  # whoever asked has left
            return
        if isinstance(what, Trouble):
            answer.set_exception(raised(what))
        else:
            answer.set_result(what)

    async def _reply(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            found = await self._answer(name, arguments)
        except (Exception, asyncio.CancelledError) as error:
            found = trouble_of(error)
        self._send("answer", number, found)

    def _send(self, *message: Any) -> None:
        body = pickle.dumps(message)
        with suppress(OSError):  # the reader sees the end, too
            self._writer.write(_LENGTH.pack(len(body)) + body)


def _gone() -> ExecutorError:
    return ExecutorError("the line to the Ray cluster is cut")
