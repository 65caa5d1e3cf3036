"""The processes of one gateway: what happens when one is killed, hangs, or cannot go on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import aiohttp
import psutil
import pytest

from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.http.control import replica_of
from runners.gateway.refusal import GatewayError
from runners.gateway.settings import GatewaySettings
from runners.records.store.run_store import RunStore
from tests.fakes.replicated_gateway import Replicated, replicated_gateway
from tests.fakes.running_gateway import Agent, user
from tests.runners.gateway.replicas.agents import converse, open_agent

pytestmark = pytest.mark.integration


async def until_it_is_there(agent: Agent) -> None:
    """Return when the process of a key that it does not know any more answers again."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as http:
        while True:
            with suppress(aiohttp.ClientConnectionError):
                url = f"{agent.gateway.url}/v1/models"
                async with http.get(url, headers={"x-api-key": agent.key}) as answer:
                    assert answer.status in (200, 401)
                    if answer.status == 401:
                        return
            await asyncio.sleep(0.02)


def outcomes(run_dir: Path) -> dict[str, tuple[str, float | None, int]]:
    """Return outcome, reward and turns of each rollout."""
    with RunStore.open(run_dir, read_only=True) as store:
        store.verify_arrays()
        kept = store.rollouts()
        assert len({(record.group, record.member) for record in kept}) == len(kept)
    return {each.rollout_id: (str(each.outcome.code), each.reward, each.turns) for each in kept}


async def start_sessions(running: Replicated, http: aiohttp.ClientSession) -> list[list[Agent]]:
    """Open four sessions of one task with a turn each; return them by process."""
    found: list[list[Agent]] = [[], []]
    for number in range(4):
        agent = await open_agent(running.admin, http, f"s{number}", "t")
        await converse(agent, stream=False, turns=1)
        found[replica_of(agent.key) or 0].append(agent)
    return found


async def test_a_killed_process_loses_its_own_sessions_alone_and_is_started_again(
    settings: GatewaySettings, engine: ScriptedEngine, http: aiohttp.ClientSession
) -> None:
    async with replicated_gateway(settings) as running:
        admin = running.admin
        (finished, lost), (living, other) = await start_sessions(running, http)
        await admin.finish(finished.session_id, 1.0)
        running.processes()[0].kill()
        await converse(living, stream=True)
        await until_it_is_there(lost)  # at the same address
        for agent in (finished, lost):
            with pytest.raises(GatewayError, match=f"no session '{agent.session_id}'") as caught:
                await admin.finish(agent.session_id)
            assert caught.value.status == 404
            await admin.delete(agent.session_id)
        new = [await open_agent(admin, http, f"n{number}", "t") for number in (4, 5)]
        assert [replica_of(agent.key) for agent in new] == [0, 0], "where the fewest are"
        await converse(new[0], stream=True, turns=1)
        await admin.finish(new[0].session_id, 0.75)
        await admin.finish(living.session_id, 0.5)
        assert outcomes(settings.run_dir) == {
            finished.session_id: ("policy.finished", 1.0, 1),
            lost.session_id: ("infra.gateway", None, 1),
            living.session_id: ("policy.finished", 0.5, 3),
            "n4": ("policy.finished", 0.75, 1),
        }
        assert "gateway-0 ended unexpectedly (exit -9)" in running.said[0]
        # a pause that began before holds for one that is started within it
        await admin.pause(5.0)
        running.processes()[1].kill()
        await until_it_is_there(other)
        for agent in (living, other):
            await admin.delete(agent.session_id)
        late = await open_agent(admin, http, "s9")
        assert replica_of(late.key) == 1
        before = len(engine.seen.requests)
        waiting = asyncio.create_task(late.ask([user("now")]))
        await asyncio.wait({waiting}, timeout=0.3)
        assert len(engine.seen.requests) == before
        await admin.resume()
        await waiting
        assert running.ended == []


async def test_a_process_that_hangs_is_killed_and_holds_up_no_pause(
    settings: GatewaySettings, http: aiohttp.ClientSession
) -> None:
    async with replicated_gateway(settings) as running:
        (lost, _), (living, _) = await start_sessions(running, http)
        hung = running.processes()[0]
        hung.suspend()
        try:
            await running.admin.pause(1.0)  # answered when it is dead
            await running.admin.resume()
        finally:
            with suppress(psutil.NoSuchProcess):
                hung.resume()
        await living.ask([user("hello")])
        await until_it_is_there(lost)
        assert "gateway-0 lives and answers nothing: it is killed" in running.said


async def test_sessions_of_a_process_that_is_killed_at_the_end_are_kept_too(
    settings: GatewaySettings, http: aiohttp.ClientSession
) -> None:
    async with replicated_gateway(settings) as running:
        (finished, lost), others = await start_sessions(running, http)
        await running.admin.finish(finished.session_id, 1.0)
        running.processes()[0].kill()  # nobody is told of it before the end
    unfinished = ("infra.gateway", None, 1)
    assert outcomes(settings.run_dir) == {
        finished.session_id: ("policy.finished", 1.0, 1),
        **{agent.session_id: unfinished for agent in (lost, *others)},
    }


async def test_a_disk_that_fails_one_process_ends_the_gateway_with_the_reason(
    settings: GatewaySettings,
) -> None:
    async with replicated_gateway(settings) as running:
        running.processes()[1].rlimit(psutil.RLIMIT_FSIZE, (200_000, 200_000))
        with suppress(GatewayError):
            for number in range(2000):
                await running.admin.create_session(f"s{number}")
        async with asyncio.timeout(20):
            while not running.ended:
                await asyncio.sleep(0.05)
        (error,) = running.ended
    assert "exit 4" in str(error)
    assert "store.sqlite" in str(error)
