"""Stands for the bridge of ``executor=ray``: nodes whose workers are real ones in this process,
on a real line to the driver. Everything but Ray.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runners.ray_workers.remote_errors import ExecutorError, NodeLost, Trouble
from runners.ray_workers.rpc import Line
from runners.ray_workers.worker import Worker, WorkerSettings

NODE = "node/1"


@dataclass
class OneNode:
    """A node that a test can lose."""

    worker: Worker = field(default_factory=Worker)
    asked: list[str] = field(default_factory=list)
    """What the driver asked, by name."""
    deaf: bool = False
    """It never ends an attempt, and hears of no cancellation."""
    last_words: dict[str, str] = field(default_factory=dict)
    """Stages that it still tells of when an attempt is cancelled; empty when they were heard."""

    def __post_init__(self) -> None:
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._listening: asyncio.Task[None] | None = None
        self._line: Line
        self._closed = False

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take up the line to the driver."""
        self._line = Line(reader, writer, self.answer)
        await self._line.serve()

    async def answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Answer the driver as the bridge does."""
        self.asked.append(name)
        match name:
            case "start":
                return {NODE: await self._start(*arguments)}
            case "run":
                return await self._run(*arguments)
            case "cancel":
                if self.last_words:
                    await self.tell(self.last_words)
                    self.last_words = {}
                return None if self.deaf else await self.worker.cancel(*arguments)
            case "close":
                await self.close()
                return [NODE]
        raise ValueError(name)

    async def lose(self, why: str = "somebody pulled the plug") -> None:
        """Lose the node, with everything that runs there."""
        if self._listening is not None:
            self._listening.cancel()
        await self._line.ask("lost", NODE, why)
        self._lost.set_result(why)

    async def tell(self, stages: dict[str, str]) -> None:
        """Tell the driver in which stages attempts are."""
        await self._line.ask("stages", NODE, stages)

    def cut(self) -> None:
        """Cut the line to the driver."""
        self._line.close()

    async def close(self) -> None:
        """End the worker."""
        if self._listening is not None:
            self._listening.cancel()
        if not self._closed:
            self._closed = True
            await self.worker.close()

    async def _start(self, settings: WorkerSettings) -> dict[str, str]:
        prepared = await self.worker.prepare(pickle.dumps(replace(settings, node=NODE)))
        found = pickle.loads(prepared)
        if isinstance(found, Trouble):
            raise ExecutorError(found.text, found.exit_code)
        self._listening = asyncio.create_task(self._listen())
        return dict(found)

    async def _listen(self) -> None:
        while True:
            questions, stages = await self.worker.questions()
            await self._line.ask("stages", NODE, stages)
            for number, question in questions:
                answer = await self._line.ask("question", NODE, question)
                await self.worker.answer(number, answer)

    async def _run(self, session_id: str, order: bytes) -> bytes:
        if self.deaf:
            await asyncio.Event().wait()
        call = asyncio.ensure_future(self.worker.run(order, 0.0))
        ends: list[asyncio.Future[Any]] = [call, self._lost]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._lost.done():
            raise NodeLost(f"{NODE}: {self._lost.result()}", NODE)
        return call.result()


@asynccontextmanager
async def one_node(directory: Path) -> AsyncIterator[tuple[OneNode, dict[str, Any]]]:
    """Give a node, and what its bridge announces."""
    node = OneNode()
    server = await asyncio.start_unix_server(node.take, directory / "line")
    try:
        yield node, {"line": str(directory / "line"), "address": "127.0.0.1"}
    finally:
        server.close()
        with suppress(asyncio.CancelledError):
            await node.close()
