"""Stand-in for the process of ``executor=ray`` that speaks Ray: a cluster of one node, whose worker
runs in this process and calls the driver over HTTP as a real one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from runners.ray_workers.json_http import JsonClient, JsonServer
from runners.ray_workers.remote_errors import ExecutorError, NodeLost, encode_error
from runners.ray_workers.wire import identity
from runners.ray_workers.worker import Worker

NODE = "node/1"


class RunsAttempts(Protocol):
    """A worker, real or not."""

    async def run(self, url: str, token: str, node: str) -> dict[str, Any] | None:
        """Work for the driver."""
        ...

    async def close(self) -> None:
        """Stop working."""
        ...


@dataclass
class DeafWorker:
    """A worker that begins no attempt and ends none, whatever it is told."""

    silent: bool = False
    """It does not even call the driver once it is ready."""
    stages: dict[str, str] = field(default_factory=dict)
    """Stages of attempts that its next call tells."""
    last_words: dict[str, str] = field(default_factory=dict)
    """Stages that the call after a cancellation tells; empty when that was answered."""
    orders: list[str] = field(default_factory=list)
    """What it was told, ``start`` or ``cancel``."""
    polls: int = 0
    """Answers that it got."""

    async def run(self, url: str, token: str, node: str) -> dict[str, Any] | None:
        """Call the driver as a worker does, and never obey."""
        driver = JsonClient(url, token)
        try:
            await driver.call("settings", self.identity(), deadline_s=10)
            await driver.call("ready", {}, deadline_s=10)
            while self.silent:
                await asyncio.sleep(3600)
            while True:
                orders = await driver.call("poll", self.stages, deadline_s=10)
                self.polls += 1
                self.orders += ["start"] * len(orders["start"])
                if orders["cancel"]:
                    self.orders.append("cancel")
                    await driver.call("poll", self.last_words, deadline_s=10)
                    self.last_words = {}
        except ExecutorError as error:
            return encode_error(error)
        finally:
            await driver.close()

    def identity(self) -> dict[str, str]:
        """Return what must be the same on every node."""
        return identity()

    async def close(self) -> None:
        """Stop working: the call of ``run`` is cancelled."""


@dataclass
class OneNode:
    """A node that a test can lose."""

    make_worker: Callable[[], RunsAttempts] = Worker

    def __post_init__(self) -> None:
        self.up = True
        """Whether the node is in the cluster."""
        self.running: asyncio.Task[dict[str, Any] | None] | None = None
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._server = JsonServer(
            {"token": None},
            {"nodes": self._nodes, "run": self._run, "kill": self._kill, "close": self._close},
        )

    async def start(self) -> dict[str, Any]:
        """Serve; returns what the process that speaks Ray announces."""
        port = await self._server.start("127.0.0.1")
        return {"address": "127.0.0.1", "url": f"http://127.0.0.1:{port}", "token": "token"}

    def lose(self, why: str = "somebody pulled the plug") -> None:
        """Lose the node; its worker goes on, as one does that is only cut off."""
        self.up = False
        self._lost.set_result(why)

    async def stop(self) -> None:
        """End the process that speaks Ray, and with it the worker."""
        await self._server.close()
        if self.running is not None:
            self.running.cancel()
            await asyncio.wait([self.running])

    async def _nodes(self, *_: object) -> list[dict[str, str]]:
        node = {"node_id": "1", "name": NODE, "address": "127.0.0.1"}
        return [node] if self.up else []

    async def _run(self, _: object, body: dict[str, str]) -> dict[str, Any] | None:
        if self.running is not None:
            self.running.cancel()
        self.worker = self.make_worker()
        work = self.worker.run(body["url"], body["token"], body["node"])
        self.running = asyncio.create_task(work, name="the worker")
        ends: list[asyncio.Future[Any]] = [self.running, self._lost]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._lost.done():
            raise NodeLost(self._lost.result(), NODE)
        return self.running.result()

    async def _kill(self, *_: object) -> None:
        assert self.running is not None
        self.running.cancel()

    async def _close(self, *_: object) -> list[str]:
        if self.running is None or self._lost.done():
            return []
        await self.worker.close()
        return [NODE]


@asynccontextmanager
async def one_node(make_worker: Callable[[], RunsAttempts]) -> AsyncIterator[OneNode]:
    """Yield a node; its worker ends with the block."""
    node = OneNode(make_worker)
    try:
        yield node
    finally:
        await node.stop()
