"""Several SGLang workers as one engine, each session at one of them, with or without a router.

Which worker a session has follows from its id alone (rendezvous hashing, Thaler and Ravishankar
1998), so that every process that talks to the workers agrees, and a worker that goes moves only its
own sessions. A worker is gone while it takes no connection; its sessions are then at their next.
Control (weights, loads, aborts) always goes to the workers themselves: a router has no
``/abort_request`` and no ``/v1/loads``.

Invariant: no generation is returned that is older than one of another worker: a worker that missed
an update counts as gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from runners.engines.client import HttpEngine
from runners.engines.contract import (
    EngineError,
    EngineLoad,
    Generation,
    SamplingParams,
    session_id_of,
)

REVISIT_S = 10.0
"""A worker that is gone is asked last for so long; then it gets its sessions back."""

T = TypeVar("T")


def connect_engine(
    url: str, workers: Sequence[str] = (), *, deadline_s: float = 600.0
) -> HttpEngine | WorkerEngine:
    """Return the engine at ``url``: a server, or, with ``workers``, what stands in front of them.

    A ``url`` that is one of the workers means that nothing does.
    """
    if not workers:
        return HttpEngine(url, deadline_s=deadline_s)
    fleet = WorkerEngine([HttpEngine(worker, deadline_s=deadline_s) for worker in workers])
    if url.rstrip("/") not in workers:
        fleet.router = HttpEngine(url, deadline_s=deadline_s, abort=fleet.abort)
    return fleet


class WorkerEngine:
    """A ``ServedEngine`` of several workers; all calls on one event loop."""

    def __init__(self, workers: Sequence[HttpEngine]) -> None:
        self.router: HttpEngine | None = None
        """Where generations go instead, if set; it keeps sessions together by the routing key."""
        self._workers = list(workers)
        self._gone: dict[HttpEngine, float] = {}
        """When a worker that is gone may be asked first again."""
        self._newest = 0
        """Weight version of the newest generation or update."""

    def wrap_workers(self, wrap: Callable[[HttpEngine], HttpEngine]) -> WorkerEngine:
        """Return an engine of the same workers, each in what ``wrap`` puts around it."""
        wrapped = WorkerEngine([wrap(worker) for worker in self._workers])
        wrapped.router = self.router
        return wrapped

    async def generate(
        self, input_ids: list[int], params: SamplingParams, *, rid: str
    ) -> Generation:
        """Sample at the session's worker, or at the next one that is there; raises EngineError.

        Cancelling the call aborts the request where it runs.
        """
        if self.router is not None:
            return await self.router.generate(input_ids, params, rid=rid)
        failure = EngineError("there is no worker")
        for worker in self._in_order(session_id_of(rid)):
            try:
                generation = await worker.generate(input_ids, params, rid=rid)
            except EngineError as error:
                if not error.unreachable:
                    raise
                failure = error
            else:
                if generation.weight_version >= self._newest:
                    self._newest = generation.weight_version
                    self._gone.pop(worker, None)
                    return generation
                failure = EngineError(
                    f"engine {worker.name} has weights {generation.weight_version}, others have "
                    f"{self._newest}: it missed an update; restart it with the newest",
                    retryable=True,
                )
            self._gone[worker] = asyncio.get_running_loop().time() + REVISIT_S
        raise failure

    async def update_weights(self, path: Path, version: int) -> None:
        """Update every worker that is there; raises EngineError if one of them fails, or none is
        there.
        """
        await self._everywhere(lambda worker: worker.update_weights(path, version))
        self._newest = version

    async def loads(self) -> EngineLoad:
        """Return what all have to do; one that is gone has nothing to do for us."""
        loads = await self._everywhere(HttpEngine.loads)
        return EngineLoad(sum(load.running for load in loads), sum(load.waiting for load in loads))

    async def abort(self, rid: str) -> None:
        """Abort a request, wherever it runs; never raises."""
        await asyncio.gather(*(worker.abort(rid) for worker in self._workers))

    async def abort_all(self) -> None:
        """Abort every request at every worker."""
        await self._everywhere(HttpEngine.abort_all)

    async def healthy(self) -> bool:
        """Whether generations can be had: from the router, or from any worker."""
        if self.router is not None:
            return await self.router.healthy()
        return any(await asyncio.gather(*(worker.healthy() for worker in self._workers)))

    async def close(self) -> None:
        """Close the connections."""
        if self.router is not None:
            await self.router.close()  # first: its last aborts go to the workers
        for worker in self._workers:
            await worker.close()

    def _in_order(self, session: str) -> list[HttpEngine]:
        """Return the workers in the order in which a session has them, those gone last."""
        now = asyncio.get_running_loop().time()
        gone = {worker for worker, until in self._gone.items() if until > now}
        return sorted(
            self._workers,
            key=lambda worker: (worker not in gone, _weight(session, worker.name)),
            reverse=True,
        )

    async def _everywhere(self, call: Callable[[HttpEngine], Coroutine[Any, Any, T]]) -> list[T]:
        """Return what the workers that are there answer; raises the first EngineError else."""
        answers = await asyncio.gather(
            *(call(worker) for worker in self._workers), return_exceptions=True
        )
        there: list[T] = []
        missing: EngineError | None = None
        for answer in answers:
            if isinstance(answer, EngineError) and answer.unreachable:
                missing = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                there.append(answer)
        if missing is not None and not there:
            raise missing
        return there


def _weight(session: str, worker: str) -> bytes:
    return blake2b(f"{session}\0{worker}".encode(), digest_size=8).digest()
