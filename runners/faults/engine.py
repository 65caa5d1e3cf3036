"""An engine that refuses, stalls, loses connections, and answers rubbish.

Between the gateway and an engine a call's ``rid`` begins with ``SESSION:BRANCH:``, which says whose
turn it is. Each try of a call is a crossing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import orjson

from conf.fault_table import Boundary, FaultKind
from runners.engines.client import PUSHED_BACK_STATUS, RETRYABLE_STATUS, HttpEngine
from runners.engines.contract import Engine, EngineError, Generation, SamplingParams
from runners.faults.inject import strike
from runners.faults.injection import Crossings, Injection
from runners.faults.plan import Fault, FaultPlan
from runners.faults.server import drop_client

UPDATE = "/update_weights_from_disk"

Keep = Callable[[Fault], Awaitable[None]]

BRANCHES: dict[str, Boundary] = {"subagent": "subagent", "compaction": "compaction"}
"""Branches of a session that are boundaries of their own; their calls cross ``turn`` too."""
ELSEWHERE: frozenset[FaultKind] = frozenset({"death"})
"""At ``turn``, but injected by the driver: the sandbox is there."""


def engine_error(fault: Fault) -> EngineError:
    """Return what the engine's client raises."""
    if fault.what == "garbage":
        return EngineError(f"unreadable answer: {fault}", status=200)
    status = fault.status
    return EngineError(
        str(fault),
        status=status,
        retryable=status is None or status in RETRYABLE_STATUS,
        pushed_back=status in PUSHED_BACK_STATUS,
    )


class FaultyUpdates(HttpEngine):
    """The driver's client, whose requests go through a real one, which its owner closes; each try
    to update the weights is a crossing by ``weights-VERSION``.
    """

    def __init__(self, real: HttpEngine, injection: Injection) -> None:
        vars(self).update(vars(real))
        self._real = real
        self._injection = injection

    async def close(self) -> None:
        """Leave the connections to the real client's owner."""

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        deadline_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        if path != UPDATE or body is None:
            return await self._real._request(method, path, body, deadline_s, headers)
        version = int(orjson.loads(body)["weight_version"])
        fault = self._injection.draw("weights", f"weights-{version:06d}")
        try:
            async with asyncio.timeout(deadline_s):
                await strike(fault, engine_error)
        except TimeoutError as error:
            raise EngineError(f"no answer within {deadline_s:g} s", retryable=True) from error
        raw = await self._real._request(method, path, body, deadline_s)
        if fault is not None and fault.what == "cut":
            raise engine_error(fault)
        return raw


class FaultyEngine:
    """An ``Engine`` around the gateway's real one."""

    def __init__(self, real: Engine, plan: FaultPlan, keep: Keep) -> None:
        self._real = real
        self._crossings = Crossings(plan)
        self._keep = keep

    async def generate(
        self, input_ids: list[int], params: SamplingParams, *, rid: str
    ) -> Generation:
        """Sample, unless a fault comes in between; what is lost on the way back was sampled."""
        fault = await self._drawn(rid)
        await strike(fault, engine_error)
        what = fault.what if fault is not None else None
        if what == "disconnect":
            drop_client()
        generation = await self._real.generate(input_ids, params, rid=rid)
        if fault is not None and what in ("cut", "garbage"):
            raise engine_error(fault)
        if what == "abort":
            return _aborted(generation)
        if what == "weight_update":
            return replace(generation, weight_version=generation.weight_version + 1)
        return generation

    async def update_weights(self, path: Path, version: int) -> None:
        """Change the real one's weights; the driver's client is where that fails."""
        await self._real.update_weights(path, version)

    async def healthy(self) -> bool:
        """Whether the real one answers."""
        return await self._real.healthy()

    async def close(self) -> None:
        """Close the real one's connections."""
        await self._real.close()

    async def _drawn(self, rid: str) -> Fault | None:
        """Return what happens to a call: at its branch's own boundary first."""
        session_id, branch, *_ = f"{rid}::".split(":")
        own = BRANCHES.get(branch)
        faults = [self._crossings.draw(where, session_id) for where in (own, "turn") if where]
        fault = next((fault for fault in faults if fault is not None), None)
        if fault is None or fault.what in ELSEWHERE:
            return None
        await self._keep(fault)
        return fault


def _aborted(generation: Generation) -> Generation:
    """Return the first half of a generation, as an engine gives back what it had."""
    half = len(generation.output_ids) // 2
    return replace(
        generation,
        output_ids=generation.output_ids[:half],
        logprobs=generation.logprobs[:half],
        finish_reason="abort",
        matched=None,
    )
