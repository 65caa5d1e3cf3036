"""Several SGLang workers as one engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.campaigns.drain import pause_turns
from runners.engines.client import HttpEngine
from runners.engines.contract import EngineError, EngineLoad, SamplingParams
from runners.engines.resilient import PauseResult, ResilientEngine
from runners.engines.sglang.workers import WorkerEngine, connect_engine
from runners.gateway.client import GatewayAdmin
from runners.records.record import UNKNOWN_VERSION
from runners.system.concurrency.limits import Admission, TokenBucket
from tests.fakes.sglang_router import Router

PARAMS = SamplingParams(max_new_tokens=8)


@pytest.fixture
async def servers() -> AsyncIterator[list[ScriptedEngine]]:
    async with AsyncExitStack() as exits:
        running = [await exits.enter_async_context(ScriptedEngine()) for _ in range(3)]
        for server in running:
            server.always = Completion("ok<|im_end|>")
        yield running


@pytest.fixture
async def engine(servers: list[ScriptedEngine]) -> AsyncIterator[HttpEngine | WorkerEngine]:
    urls = [server.url for server in servers]
    engine = connect_engine(urls[0], urls, deadline_s=300)
    yield engine
    await engine.close()


def asked(servers: list[ScriptedEngine]) -> list[int]:
    return [len(server.seen.requests) for server in servers]


def server_of(servers: list[ScriptedEngine], session: str) -> ScriptedEngine:
    (found,) = (
        server
        for server in servers
        if any(body["rid"].startswith(f"{session}:") for body in server.seen.requests)
    )
    return found


async def test_a_session_stays_at_its_worker_and_sessions_are_spread(
    servers: list[ScriptedEngine], engine: WorkerEngine
) -> None:
    for session in range(30):
        for turn in range(2):
            await engine.generate([1, 2], PARAMS, rid=f"s{session}:main:{turn}")
    assert sum(asked(servers)) == 60
    assert all(count % 2 == 0 and count for count in asked(servers))


async def test_only_the_sessions_of_a_lost_worker_move(
    servers: list[ScriptedEngine], engine: WorkerEngine
) -> None:
    for session in range(12):
        await engine.generate([1], PARAMS, rid=f"s{session}:main:0")
    retrying = ResilientEngine(
        engine,
        attempts=2,
        deadline_s=300,
        bucket=TokenBucket(None),
        admission=Admission(8, adaptive=False),
    )
    before = {session: server_of(servers, f"s{session}") for session in range(12)}
    lost = before[0]
    await lost.__aexit__()
    left = [server for server in servers if server is not lost]
    for server in left:
        server.seen.requests.clear()
    for session in range(12):
        await retrying.generate([1], PARAMS, rid=f"s{session}:main:1")
    for session, server in before.items():
        if server is not lost:
            assert server_of(left, f"s{session}") is server


async def test_losing_all_workers_is_a_retryable_error(
    servers: list[ScriptedEngine], engine: WorkerEngine
) -> None:
    for server in servers:
        await server.__aexit__()
    with pytest.raises(EngineError) as error:
        await engine.generate([1], PARAMS, rid="s:main:0")
    assert error.value.retryable
    with pytest.raises(EngineError):
        await engine.loads()


async def test_weights_loads_and_aborts_go_to_all_workers(
    servers: list[ScriptedEngine], engine: WorkerEngine
) -> None:
    await engine.update_weights(Path("w"), 7)
    assert [server.weight_version for server in servers] == ["7"] * 3
    for server in servers:
        server.always = Completion("ok<|im_end|>", delay_s=1000)
    running = [  # so many that each worker has some of them, whatever their addresses are
        asyncio.create_task(engine.generate([1], PARAMS, rid=f"s{n}:main:0")) for n in range(50)
    ]
    await asyncio.gather(*(server.arrived.wait() for server in servers))
    while (await engine.loads()).running < 50:
        await asyncio.sleep(0.01)
    await engine.abort_all()
    assert {one.finish_reason for one in await asyncio.gather(*running)} == {"abort"}
    assert await engine.loads() == EngineLoad(0, 0)


async def test_a_generation_of_a_worker_that_missed_an_update_is_discarded(
    servers: list[ScriptedEngine], engine: WorkerEngine
) -> None:
    await engine.generate([1], PARAMS, rid="s:main:0")
    behind = server_of(servers, "s")
    await engine.update_weights(Path("w"), 7)
    behind.weight_version = "default"  # it was restarted
    generation = await engine.generate([1], PARAMS, rid="s:main:1")
    assert generation.weight_version == 7
    assert sum(asked(servers)) == 3


async def test_unknown_weight_versions_do_not_lose_a_worker(
    servers: list[ScriptedEngine], engine: WorkerEngine
) -> None:
    first = await engine.generate([1], PARAMS, rid="s:main:0")
    server_of(servers, "s").weight_version = "nightly"
    second = await engine.generate([1], PARAMS, rid="s:main:1")
    assert (first.weight_version, second.weight_version) == (1, UNKNOWN_VERSION)
    assert max(asked(servers)) == sum(asked(servers)) == 2


async def test_an_error_answer_is_not_retried_at_another_worker(
    servers: list[ScriptedEngine], engine: WorkerEngine
) -> None:
    for server in servers:
        server.always = Completion(status=400)
    with pytest.raises(EngineError) as error:
        await engine.generate([1], PARAMS, rid="s:main:0")
    assert error.value.status == 400
    assert sum(asked(servers)) == 1


async def test_behind_a_router_aborts_go_to_the_workers(servers: list[ScriptedEngine]) -> None:
    async with Router(servers[0]) as router:
        engine = connect_engine(router.url, [server.url for server in servers], deadline_s=300)
        servers[0].always = Completion("ok<|im_end|>", delay_s=1000)
        running = asyncio.create_task(engine.generate([1], PARAMS, rid="s1:main:0"))
        await servers[0].arrived.wait()
        assert (await engine.loads()).running == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await engine.close()
        assert router.keys == ["s1"]
        assert [server.seen.aborted.count("s1:main:0") for server in servers[1:]] == [1, 1]


async def test_a_drain_behind_a_router_asks_the_workers_for_their_load(
    servers: list[ScriptedEngine],
) -> None:
    class Gateway(GatewayAdmin):
        async def pause(self, deadline_s: float, *, keep: bool = False) -> PauseResult:
            return PauseResult(0, 0)

        async def resume(self) -> None:
            pass

    gateway = Gateway("http://127.0.0.1:9", "")
    async with Router(servers[0]) as router:
        alone = connect_engine(router.url)
        with pytest.raises(EngineError, match=r"list the servers behind it in engine\.workers"):
            async with pause_turns(gateway, alone, deadline_s=1):
                raise AssertionError
        engine = connect_engine(router.url, [server.url for server in servers])
        async with pause_turns(gateway, engine, deadline_s=1):
            pass
        await alone.close()
        await engine.close()


@given(st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=40, unique=True))
def test_a_new_worker_takes_sessions_and_moves_none_between_the_others(
    sessions: list[str],
) -> None:
    async def first(count: int) -> dict[str, str]:
        engine = WorkerEngine([HttpEngine(f"http://w{n}") for n in range(count)])
        return {session: engine._order_workers(session)[0].name for session in sessions}

    few, many = asyncio.run(first(3)), asyncio.run(first(4))
    moved = {many[session] for session in sessions if few[session] != many[session]}
    assert moved <= {"http://w3"}
    assert Counter(few.values()).total() == len(sessions)
