"""The real ``smg`` in front of two servers; skipped where it is not installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from agentrl.testing.completions import Completion, Reply
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.engines.capabilities import check_capabilities
from runners.engines.contract import SamplingParams
from runners.engines.server_check import CheckResult, EngineServers
from runners.engines.sglang.workers import connect_engine
from runners.records.routing import RoutingShape
from tests.fakes.sglang_router import KNOWN
from tests.fakes.smg import running_smg

pytestmark = pytest.mark.integration

SHAPE = RoutingShape(layers=2, top_k=2, experts=8, routed=(0, 1))
READY_S = 60.0


class BehindSmg(ScriptedEngine):
    """An engine that ignores the fields that smg adds to a request."""

    async def _generate(self, body: dict[str, Any]) -> Reply:
        routing = ("return_routed_experts", "routed_experts_start_len")
        return await super()._generate({k: body[k] for k in (*KNOWN, *routing) if k in body})


@pytest.fixture
async def servers() -> AsyncIterator[list[BehindSmg]]:
    async with AsyncExitStack() as exits:
        running = [await exits.enter_async_context(BehindSmg()) for _ in range(2)]
        for server in running:
            server.always = Completion("a b<|im_end|>")
            server.shape = SHAPE
            server.long_s = 1.0
        yield running


async def until_it_knows(router: str, number: int) -> None:
    """Wait until the router has so many workers."""
    async with aiohttp.ClientSession() as client:
        while True:
            async with client.get(f"{router}/workers") as response:
                workers = (await response.json())["workers"]
            if sum(worker["is_healthy"] for worker in workers) == number:
                return
            await asyncio.sleep(0.1)


async def run_check(router: str, urls: list[str]) -> dict[str, CheckResult]:
    clients = EngineServers(router, urls)
    try:
        found = await check_capabilities(clients, context_tokens=32768, routing=SHAPE)
    finally:
        await clients.close()
    return {result.name: result for result in found}


async def test_a_session_stays_at_its_server_behind_consistent_hashing(
    servers: list[BehindSmg],
) -> None:
    urls = [server.url for server in servers]
    with running_smg("--policy", "consistent_hashing", "--worker-urls", *urls) as router:
        await until_it_knows(router, 2)
        found = await run_check(router, urls)
        engine = connect_engine(router, urls)
        for server in servers:
            server.seen.requests.clear()
        for session in range(12):
            for turn in range(3):
                rid = f"s{session}:main:{turn}"
                await engine.generate([1, 2], SamplingParams(max_new_tokens=8), rid=rid)
        await engine.close()
    assert [result for result in found.values() if not result.ok] == []
    assert found["routing"].detail == "2 layers, 2 experts a token"
    assert found["sessions"].detail == "the router keeps a session at one server"
    seen = [{body["rid"].partition(":")[0] for body in s.seen.requests} for s in servers]
    assert len(seen[0] | seen[1]) == 12
    assert all(seen)
    assert not seen[0] & seen[1]


async def test_a_policy_that_spreads_sessions_fails_the_check(
    servers: list[BehindSmg],
) -> None:
    urls = [server.url for server in servers]
    with running_smg("--policy", "round_robin", "--worker-urls", *urls) as router:
        await until_it_knows(router, 2)
        found = await run_check(router, urls)
    assert {name for name, result in found.items() if not result.ok} == {"sessions"}
    assert "--policy consistent_hashing" in found["sessions"].detail
