"""Serve several SGLang workers as one engine, each session at one of them.

The worker of a session follows from its id alone (rendezvous hashing, Thaler and Ravishankar 1998):
every process that talks to the workers agrees, and a worker that is lost moves only its own
sessions. A worker is lost while it accepts no connection; its sessions go to their next worker.
With a router in front, generations go to the router. Control (weights, loads, aborts) always goes
to the workers themselves, because a router has no ``/abort_request`` and no ``/v1/loads``.

Invariant: no generation is returned whose weights are older than those of one that had ended when
it began: a worker that missed an update counts as lost. Versions that are not known are not
compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from runners.engines.client import HttpEngine
from runners.engines.contract import (
    EngineError,
    EngineLoad,
    Generation,
    SamplingParams,
    TokenIds,
    session_id_of,
)
from runners.records.record import UNKNOWN_VERSION

REVISIT_S = 10.0
"""A lost worker is asked last for this long; then it gets its sessions back."""

T = TypeVar("T")


def connect_engine(
    url: str,
    workers: Sequence[str] = (),
    *,
    deadline_s: float = 600.0,
    adapter: str | None = None,
    version_offset: int = 0,
) -> HttpEngine | WorkerEngine:
    """Return the engine at ``url``: one server, or with ``workers`` the engine of those servers.

    ``url`` is then a router in front of them, unless it is one of the workers. ``adapter``,
    ``version_offset``: as of ``HttpEngine``.
    """
    connect = partial(
        HttpEngine, deadline_s=deadline_s, adapter=adapter, version_offset=version_offset
    )
    if not workers:
        return connect(url)
    engine = WorkerEngine([connect(worker) for worker in workers])
    if url.rstrip("/") not in workers:
        engine.router = connect(url, abort=engine.abort)
    return engine


class WorkerEngine:
    """A ``ServedEngine`` of several workers; all calls come from one event loop."""

    def __init__(self, workers: Sequence[HttpEngine]) -> None:
        self.router: HttpEngine | None = None
        """Gets all generations if set; it keeps sessions together by the routing key."""
        self._workers = list(workers)
        self._lost: dict[HttpEngine, float] = {}
        """Loop time at which a lost worker may be asked first again."""
        self._newest = 0
        """Weight version of the newest generation or update."""

    def wrap_workers(self, wrap: Callable[[HttpEngine], HttpEngine]) -> WorkerEngine:
        """Return an engine of the same workers, each as ``wrap`` returns it."""
        wrapped = WorkerEngine([wrap(worker) for worker in self._workers])
        wrapped.router = self.router
        return wrapped

    async def generate(
        self, input_ids: TokenIds, params: SamplingParams, *, rid: str
    ) -> Generation:
        """Sample at the session's worker, or at the next one that is reachable; raises EngineError.

        Cancelling the call aborts the request where it runs.
        """
        if self.router is not None:
            return await self.router.generate(input_ids, params, rid=rid)
        failure = EngineError("there is no worker")
        # One that began before an update may end after it, and is no sign of a missed update.
        expected = self._newest
        for worker in self._order_workers(session_id_of(rid)):
            try:
                generation = await worker.generate(input_ids, params, rid=rid)
            except EngineError as error:
                if not error.unreachable:
                    raise
                failure = error
            else:
                version = generation.weight_version
                if version == UNKNOWN_VERSION or version >= expected:
                    self._newest = max(version, self._newest)
                    self._lost.pop(worker, None)
                    return generation
                failure = EngineError(
                    f"engine {worker.name} has weights {version}, others had "
                    f"{expected}: it missed an update; restart it with the newest",
                    retryable=True,
                )
            self._lost[worker] = asyncio.get_running_loop().time() + REVISIT_S
        raise failure

    async def update_weights(self, path: Path, version: int) -> None:
        """Update every reachable worker; raises EngineError if one fails, or none is reachable."""
        await self._call_all(lambda worker: worker.update_weights(path, version))
        self._newest = version

    async def loads(self) -> EngineLoad:
        """Return the sum over the reachable workers."""
        loads = await self._call_all(HttpEngine.loads)
        return EngineLoad(sum(load.running for load in loads), sum(load.waiting for load in loads))

    async def abort(self, rid: str) -> None:
        """Abort a request at every worker; never raises."""
        await asyncio.gather(*(worker.abort(rid) for worker in self._workers))

    async def abort_all(self) -> None:
        """Abort every request at every reachable worker."""
        await self._call_all(HttpEngine.abort_all)

    async def close(self) -> None:
        """Close the connections."""
        if self.router is not None:
            await self.router.close()  # first: its last aborts go through the workers' connections
        for worker in self._workers:
            await worker.close()

    def _order_workers(self, session: str) -> list[HttpEngine]:
        """Return the workers in the session's order of preference, lost ones last."""
        now = asyncio.get_running_loop().time()
        lost = {worker for worker, until in self._lost.items() if until > now}
        return sorted(
            self._workers,
            key=lambda worker: (worker not in lost, _weight(session, worker.name)),
            reverse=True,
        )

    async def _call_all(self, call: Callable[[HttpEngine], Coroutine[Any, Any, T]]) -> list[T]:
        """Call all workers; return the results of the reachable ones.

        Raises the first other error, or EngineError if no worker is reachable.
        """
        answers = await asyncio.gather(
            *(call(worker) for worker in self._workers), return_exceptions=True
        )
        results: list[T] = []
        unreachable: EngineError | None = None
        for answer in answers:
            if isinstance(answer, EngineError) and answer.unreachable:
                unreachable = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                results.append(answer)
        if unreachable is not None and not results:
            raise unreachable
        return results


def _weight(session: str, worker: str) -> bytes:
    """Return the weight of a worker for a session: the greatest wins (rendezvous hashing)."""
    return blake2b(f"{session}\0{worker}".encode(), digest_size=8).digest()
