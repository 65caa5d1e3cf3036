"""Sessions of several gateway processes: the client chooses one for each, and it serves it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import aiohttp
import httpx
import pytest

import agentrl
from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from conf.errors import ConfigError
from runners.gateway.client import GatewayAdmin
from runners.gateway.http.control import replica_of
from runners.gateway.refusal import GatewayError
from runners.gateway.replicas.replica_set import share_settings
from runners.gateway.settings import GatewaySettings, ReplicaSettings
from runners.records.graph import build_segments
from runners.records.store.run_store import RunStore
from runners.system.processes.ports import free_port
from tests.fakes.replicated_gateway import inline_replicas
from tests.fakes.running_gateway import (
    LIMITS,
    Agent,
    Gateway,
    deliver_listener,
    running_gateway,
    settings_for,
    user,
)
from tests.runners.gateway.replicas.agents import CALL, converse, open_agent


def asked(engine: ScriptedEngine) -> Counter[str]:
    """Return what an engine was asked for, in no order and without the requests' ids."""
    return Counter(
        json.dumps([body["input_ids"], body["sampling_params"]], sort_keys=True)
        for body in engine.seen.requests
    )


async def test_sessions_take_the_same_turns_through_two_processes_as_through_one(
    tokenizer_dir: Path, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    seen, stored = [], []
    for count in (1, 2):
        run_dir = tmp_path / str(count)
        RunStore.create(run_dir, {}).close()
        async with ScriptedEngine() as engine:
            engine.always = Completion(CALL)
            settings = settings_for(engine.url, tokenizer_dir, run_dir)
            async with inline_replicas(settings, count) as admin:
                agents = [await open_agent(admin, http, f"s{number}") for number in range(12)]
                async with asyncio.TaskGroup() as tasks:
                    for number, agent in enumerate(agents):
                        tasks.create_task(converse(agent, stream=number % 2 == 0))
                for agent in agents:
                    stats = (await admin.finish(agent.session_id))["stats"]
                    assert (stats["turns"], stats["breaks"]) == (3, [])
            seen.append(asked(engine))
        with RunStore.open(run_dir, read_only=True) as store:
            store.verify_arrays()
            rows = store.query(
                "SELECT array_file, count(DISTINCT session_id) FROM turn GROUP BY array_file"
            )
            assert [tuple(row) for row in rows] == ([(0, 12)] if count == 1 else [(0, 6), (1, 6)])
            segments = [build_segments(store.turns(f"s{number}")) for number in range(12)]
            stored.append([each.tokens.tolist() for chains in segments for each in chains])
    assert seen[0] == seen[1]
    assert stored[0] == stored[1]


async def test_a_key_opens_its_own_session_at_its_own_process_alone(
    admin: GatewayAdmin, http: aiohttp.ClientSession
) -> None:
    first, second = [await open_agent(admin, http, name) for name in ("s0", "s1")]
    assert {replica_of(first.key), replica_of(second.key)} == {0, 1}
    assert [admin.urls[replica_of(each.key) or 0] for each in (first, second)] == [
        first.gateway.url,
        second.gateway.url,
    ]
    for key in (f"{second.key[:2]}{first.key[2:]}", f"63{first.key[2:]}", second.key):
        for path in ("/v1/messages", "/admin/sessions"):
            status, _ = await Agent(first.gateway, "forged", key).post(path, {})
            assert status == 401, (key, path)
    # a sandbox's listener is served by the process of its session, for its session alone
    url = await deliver_listener(first.gateway.control, first.key)
    at_sandbox = Gateway(**{**vars(first.gateway), "url": url})
    await Agent(at_sandbox, "s0", first.key).ask([user("hello")])
    assert (await Agent(at_sandbox, "s1", second.key).post("/v1/messages", {}))[0] == 401


async def test_a_session_lives_where_the_fewest_are_and_is_found_by_other_clients(
    admin: GatewayAdmin,
) -> None:
    for number in range(4):
        await admin.create_session(f"s{number}")
    homes = [admin.home(f"s{number}").url for number in range(4)]
    assert Counter(homes) == dict.fromkeys(admin.urls, 2)
    for number, url in enumerate(homes):
        if url == admin.urls[0]:
            await admin.delete(f"s{number}")
    await asyncio.gather(*(admin.create_session(f"n{number}") for number in range(2)))
    assert {admin.home(f"n{number}").url for number in range(2)} == {admin.urls[0]}
    other = GatewayAdmin(admin.urls, admin.admin_key)
    try:
        for number in range(2):
            assert (await other.stats(f"n{number}"))["session_id"] == f"n{number}"
            await other.delete(f"n{number}")
        with pytest.raises(GatewayError, match="no session 'n0'") as caught:
            await other.finish("n0")
        assert caught.value.status == 404
        with pytest.raises(GatewayError, match="was used before"):
            await other.create_session("n0")
    finally:
        await other.close()


async def test_a_process_that_is_gone_gets_no_session_and_holds_up_no_pause(
    admin: GatewayAdmin,
) -> None:
    gone = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    some = GatewayAdmin([gone, *admin.urls], admin.admin_key)
    try:
        for number in range(3):
            await some.create_session(f"s{number}")
            assert some.home(f"s{number}").url != gone
        paused = await some.pause(1.0)
        assert (paused.finished, paused.aborted, paused.kept) == (0, 0, 0)
        await some.resume()
        assert not await some.healthy()
        for number in range(3):
            await some.delete(f"s{number}")
    finally:
        await some.close()
    none = GatewayAdmin([gone], admin.admin_key)
    with pytest.raises(GatewayError, match="does not answer"):
        await none.pause(1.0)
    await none.close()


async def test_a_process_begins_paused_and_is_opened_unless_all_are_paused(
    admin: GatewayAdmin,
    settings: GatewaySettings,
    engine: ScriptedEngine,
    http: aiohttp.ClientSession,
) -> None:
    agent = await open_agent(admin, http, "s0")
    paused = await admin.pause(1.0)
    assert paused.aborted == 0
    await admin.open_replica(agent.gateway.url)
    waiting = asyncio.create_task(agent.ask([user("now")]))
    await asyncio.wait({waiting}, timeout=0.2)
    assert not engine.seen.requests
    await admin.resume()
    await waiting
    place = ReplicaSettings(number=2, of=3, admin_key="new")
    async with running_gateway(
        engine.url,
        Path(str(settings.tokenizer)),
        settings.run_dir,
        make_run=False,
        replica=place.model_dump(),
    ) as new:
        late = await new.session("late")
        waiting = asyncio.create_task(late.ask([user("now")]))
        await asyncio.wait({waiting}, timeout=0.2)
        assert len(engine.seen.requests) == 1
        await new.admin.open_replica(new.url)
        await waiting


async def test_sessions_of_a_task_are_a_group_whichever_process_serves_them(
    admin: GatewayAdmin, settings: GatewaySettings, http: aiohttp.ClientSession
) -> None:
    for number in range(4):
        agent = await open_agent(admin, http, f"s{number}", "ab"[number % 2])
        await converse(agent, stream=False, turns=1)
        await admin.finish(agent.session_id, 1.0)
        await admin.delete(agent.session_id)  # so that each task is at both processes
    with RunStore.open(settings.run_dir, read_only=True) as store:
        kept = store.rollouts()
    groups: dict[str, set[int]] = {}
    for record in kept:
        groups.setdefault(record.task_id, set()).add(record.group)
    assert {len(numbers) for numbers in groups.values()} == {1}
    assert groups["a"] != groups["b"]
    assert len({(record.group, record.member) for record in kept}) == 4


def test_ports_beyond_the_last_one_are_refused_with_the_highest_that_works() -> None:
    for key in ("port", "metrics_port"):
        with pytest.raises(ConfigError, match=f"gateway.{key}=65534 .* choose one up to 65533"):
            compose([f"gateway.{key}=65534", "gateway.replicas=3"])
    assert compose(["gateway.port=65533", "gateway.replicas=3"]).gateway.port == 65533


async def test_a_program_attached_by_all_urls_works_at_the_process_of_its_session(
    admin: GatewayAdmin,
) -> None:
    def work(number: int) -> tuple[str, str]:
        client = agentrl.GatewayClient(admin.urls, admin.admin_key)
        with client.session(f"s{number}") as session:
            answered = httpx.get(
                f"{session.environment()['OPENAI_BASE_URL']}/models",
                headers={"authorization": f"Bearer {session.api_key}"},
                trust_env=False,
            )
            assert answered.status_code == 200
            assert session.finish(1.0).outcome == "infra.harness", "it took no turn"
            return session.base_url, admin.urls[replica_of(session.api_key) or 0]

    for number in range(4):
        base_url, home = await asyncio.to_thread(work, number)
        assert base_url == home


def test_the_limits_of_all_processes_together_are_those_of_one(settings: GatewaySettings) -> None:
    whole = settings.model_copy(
        update={"engine_calls_per_s": 9.0, "port": 8100, "metrics_port": 9400}
    )
    places = [ReplicaSettings(number=number, of=3, admin_key="k") for number in range(3)]
    shares = [share_settings(whole, place) for place in places]
    assert [share["port"] for share in shares] == [8100, 8101, 8102]
    assert [share["metrics_port"] for share in shares] == [9400, 9401, 9402]
    assert [share["engine_calls_per_s"] for share in shares] == [3.0, 3.0, 3.0]
    assert [share["limits"] for share in shares] == [{**LIMITS, "text_workers": 1}] * 3
    unlimited = share_settings(settings, places[1])
    assert (unlimited["port"], unlimited["metrics_port"]) == (0, None)
    assert unlimited["engine_calls_per_s"] is None
