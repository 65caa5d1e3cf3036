"""Stand-in for a Ray cluster of one node: the worker runs in this process, and what crosses between
it and the driver is pickled, as by Ray.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from conf.errors import AgentrlError
from runners.records import ids
from runners.rollouts.contract import RolloutSpec
from runners.services.ray_workers.errors import NodeLost
from runners.services.ray_workers.node_worker import NodeInfo, RemoteWorker
from runners.services.ray_workers.remote_recorder import RecorderCall
from runners.services.ray_workers.worker import Worker, identity

NODE = "node/1"


def cross(value: Any) -> Any:
    """Return a value as another process gets it."""
    return pickle.loads(pickle.dumps(value))


@dataclass
class DeafWorker:
    """A worker that begins no attempt and ends none, whatever it is told."""

    silent: bool = False
    """It does not even answer the driver's polls."""
    found: dict[str, str] = field(default_factory=dict)
    """What differs between its installation and the driver's."""
    stages: dict[str, str] = field(default_factory=dict)
    """Stages of attempts that it tells."""
    orders: list[str] = field(default_factory=list)
    """What it was told, ``run`` or ``cancel``, with the session."""

    async def identity(self) -> dict[str, str]:
        """Return what must be the same on every node."""
        return identity() | self.found

    async def prepare(self, settings: object) -> dict[str, str]:
        """Be ready."""
        return {}

    async def poll(self, answers: object) -> tuple[dict[str, str], list[RecorderCall]]:
        """Tell the stages."""
        await asyncio.sleep(3600 if self.silent else 0.01)
        return self.stages, []

    async def run(self, spec: RolloutSpec, number: int, queued_s: float) -> None:
        """Never end."""
        self.orders.append(f"run {ids.session_id(spec.rollout_id, number)}")
        await asyncio.Event().wait()

    async def cancel(self, session_id: str) -> None:
        """Never end."""
        self.orders.append(f"cancel {session_id}")
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Close."""


class LocalWorker:
    """A worker in this process, as the driver sees one on a node."""

    def __init__(self, worker: Any) -> None:
        self.calls: set[asyncio.Task[Any]] = set()
        """In progress, as on a node that is only cut off: the driver's end changes nothing."""
        self._worker = worker
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def lose(self, why: str) -> None:
        """Have all calls raise NodeLost; the worker goes on."""
        if not self._lost.done():
            self._lost.set_result(why)

    def kill(self) -> None:
        """Lose it."""
        self.lose("its worker is gone")

    async def stop(self) -> None:
        """End what still runs."""
        await self._worker.close()
        for call in self.calls:
            call.cancel()
        await asyncio.gather(*self.calls, return_exceptions=True)

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the worker."""
        call = asyncio.create_task(getattr(self._worker, method)(*cross(arguments)), name=method)
        self.calls.add(call)
        call.add_done_callback(self.calls.discard)
        await asyncio.wait([call, self._lost], return_when=asyncio.FIRST_COMPLETED)
        if self._lost.done():
            raise NodeLost(self._lost.result())
        try:
            return cross(call.result())
        except AgentrlError as error:
            raise cross(error) from error


@dataclass
class OneNode:
    """A cluster whose node a test can lose."""

    make_worker: Callable[[str], Any] = Worker
    address: str = "127.0.0.1"
    up: bool = True
    """Whether the node is in the cluster."""
    workers: list[LocalWorker] = field(default_factory=list)

    async def nodes(self) -> list[NodeInfo]:
        """Return the node."""
        return [NodeInfo("1", NODE, "127.0.0.1")] if self.up else []

    def start_worker(self, node: NodeInfo) -> RemoteWorker:
        """Start a worker."""
        self.workers.append(LocalWorker(self.make_worker(node.name)))
        return self.workers[-1]

    def lose(self, why: str = "somebody pulled the plug") -> None:
        """Lose the node."""
        self.up = False
        self.workers[-1].lose(why)

    async def stop(self) -> None:
        """End what still runs."""
        await asyncio.gather(*(worker.stop() for worker in self.workers))
