"""The admin API, through its client."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.testing.completions import END
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.client import GatewayAdmin
from runners.gateway.http.connections import UNKNOWN_LINES
from runners.gateway.refusal import GatewayError
from runners.gateway.sessions.session import Session
from runners.records.session_summary import STORED_COUNTERS
from runners.records.store.run_store import RunStore
from tests.fakes.cutting_proxy import CuttingProxy, cutting_proxy
from tests.fakes.running_gateway import Agent, Gateway, running_gateway, user


def session_objects() -> list[weakref.ref[Session]]:
    gc.collect()
    return [weakref.ref(thing) for thing in gc.get_objects() if type(thing) is Session]


async def test_a_session_is_created_used_finished_and_deleted(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    name, key = await gateway.admin.create_session()
    assert len(key) >= 32
    assert await gateway.admin.healthy()
    assert (await gateway.admin.stats(name))["turns"] == 0
    finished = await gateway.admin.finish(name)
    assert finished["segments"] == []
    assert finished["stats"]["trained_tokens"] == finished["stats"]["sampled_tokens"] == 0
    await gateway.admin.delete(name)
    with pytest.raises(GatewayError, match="no session") as caught:
        await gateway.admin.stats(name)
    assert caught.value.status == 404


async def test_every_session_has_its_own_key(gateway: Gateway) -> None:
    keys = {(await gateway.admin.create_session())[1] for _ in range(20)}
    assert len(keys) == 20


async def test_a_connection_of_the_admin_carries_any_number_of_lines(gateway: Gateway) -> None:
    name, _ = await gateway.admin.create_session()
    key = f"authorization: Bearer {gateway.admin_key}\r\n"
    request = f"GET /admin/sessions/{name} HTTP/1.1\r\nhost: x\r\n{key}\r\n".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    for count in (1, UNKNOWN_LINES):
        writer.write(request * count)
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < count:
            part = await reader.read(1 << 16)
            assert part, "the gateway has ended the connection"
            answers += part
    writer.close()


async def test_a_session_id_can_be_used_once(gateway: Gateway) -> None:
    await gateway.admin.create_session("s1")
    with pytest.raises(GatewayError, match="exists already") as caught:
        await gateway.admin.create_session("s1")
    assert caught.value.status == 409
    await gateway.admin.delete("s1")
    with pytest.raises(GatewayError, match="was used before") as caught:
        await gateway.admin.create_session("s1")
    assert caught.value.status == 409


async def test_a_deleted_session_is_forgotten_with_its_key(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(f"hello{END}")
    await agent.ask([user("hi")])
    alive = session_objects()
    assert len(alive) == 1
    await gateway.admin.delete("s1")
    status, _ = await agent.post("/v1/messages", agent.body([user("hi")]))
    assert status == 401
    gc.collect()
    assert [ref() for ref in alive] == [None]
    assert len(gateway.turns("s1")) == 1, "what is stored stays"


async def test_finish_without_segments_answers_the_same_counters(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(f"hello{END}")
    await agent.ask([user("hi")])
    alone = await gateway.admin.finish("s1", segments=False)
    whole = await gateway.admin.finish("s1")
    assert list(alone) == ["stats"]
    assert whole["stats"].pop("trained_tokens") == alone["stats"]["sampled_tokens"] > 0
    assert alone["stats"] == whole["stats"]
    assert set(STORED_COUNTERS) <= set(alone["stats"])
    assert [segment["kind"] for segment in whole["segments"]] == ["final"]


async def test_the_gateway_of_a_campaign_takes_no_reward_and_keeps_no_rollout(
    gateway: Gateway,
) -> None:
    await gateway.admin.create_session("s1")
    with pytest.raises(GatewayError, match="a campaign's driver decides it") as caught:
        await gateway.admin.finish("s1", reward=0.5)
    assert caught.value.status == 400
    await gateway.admin.delete("s1")
    with RunStore.open(gateway.run_dir, read_only=True) as store:
        assert store.rollouts() == []


async def test_a_sessions_settings_are_stored_without_its_key(gateway: Gateway) -> None:
    agent = await gateway.session("s1", seed=3, sampling={"temperature": 0.0})
    with RunStore.open(gateway.run_dir, read_only=True) as store:
        info = store.sessions()["s1"]
    assert (info["seed"], info["scenario"], info["sampling"]["temperature"]) == (3, "linear", 0.0)
    assert info["sampling"]["top_k"] == 40
    assert agent.key not in str(info)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"session_id": "../etc"}, "session_id"),
        ({"max_context_tokens": 10**9}, "max_context_tokens: 1000000000 is more than"),
        ({"max_context_tokens": 0}, "max_context_tokens"),
        ({"sampling": {"temprature": 1.0}}, r"sampling\.temprature: Extra inputs"),
        ({"sampling": {"temperature": -1.0}}, r"sampling\.temperature"),
        ({"scenario": "alone"}, "scenario: Input should be 'linear'"),
        ({"seed": -1}, "seed"),
    ],
)
async def test_an_impossible_setting_is_refused_by_name(
    wanted: dict[str, Any], named: str, gateway: Gateway
) -> None:
    with pytest.raises(GatewayError, match=named) as caught:
        await gateway.admin.create_session(**wanted)
    assert caught.value.status == 400


async def test_a_wrong_admin_key_is_refused(gateway: Gateway) -> None:
    _, session_key = await gateway.admin.create_session()
    for key in ("", "guess", session_key, "schlüssel"):
        guess = GatewayAdmin(gateway.url, key)
        with pytest.raises(GatewayError) as caught:
            await guess.create_session()
        assert caught.value.status == 401
        await guess.close()


async def test_a_gateway_that_is_gone_is_an_error_without_status(unused_tcp_port: int) -> None:
    admin = GatewayAdmin(f"http://127.0.0.1:{unused_tcp_port}", "key")
    with pytest.raises(GatewayError, match="does not answer POST /admin/sessions") as caught:
        await admin.create_session()
    assert caught.value.status is None
    assert not await admin.healthy()
    await admin.close()


async def test_the_next_gateway_of_a_run_knows_the_used_ids(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    async with running_gateway(engine.url, tokenizer_dir, run_dir) as first:
        await first.admin.create_session("s1")
    async with running_gateway(engine.url, tokenizer_dir, run_dir, make_run=False) as second:
        with pytest.raises(GatewayError, match="was used before"):
            await second.admin.create_session("s1")


# --- connections that do not hold -------------------------------------------------------------


@pytest.fixture
async def proxy(gateway: Gateway) -> AsyncIterator[CuttingProxy]:
    async with cutting_proxy(gateway.url) as proxy:
        yield proxy


@pytest.fixture
async def admin(gateway: Gateway, proxy: CuttingProxy) -> AsyncIterator[GatewayAdmin]:
    """Speak to the gateway over a wire that may lose replies."""
    admin = GatewayAdmin(proxy.url, gateway.admin_key)
    yield admin
    await admin.close()


async def test_a_session_whose_reply_was_lost_is_created_once_and_has_its_key(
    admin: GatewayAdmin, proxy: CuttingProxy, gateway: Gateway, engine: ScriptedEngine
) -> None:
    proxy.cuts = 2
    name, key = await admin.create_session("s1")
    assert (name, proxy.cuts) == ("s1", 0)
    engine.say(f"hello{END}")
    await Agent(gateway, name, key).ask([user("hi")])
    with pytest.raises(GatewayError, match="exists already"):
        await admin.create_session("s1")


async def test_a_session_without_an_id_is_created_once_too(
    admin: GatewayAdmin, proxy: CuttingProxy, gateway: Gateway
) -> None:
    proxy.cuts = 1
    await admin.create_session()
    with RunStore.open(gateway.run_dir, read_only=True) as store:
        assert len(store.sessions()) == 1


async def test_a_creation_that_failed_is_not_remembered(
    admin: GatewayAdmin, proxy: CuttingProxy, gateway: Gateway
) -> None:
    await admin.create_session("s1")
    await admin.delete("s1")
    proxy.cuts = 1
    await admin.close()  # the next call takes a new connection
    with pytest.raises(GatewayError, match="was used before") as caught:
        await admin.create_session("s1")
    assert caught.value.status == 409


async def test_finishing_and_deleting_survive_a_lost_reply(
    admin: GatewayAdmin, proxy: CuttingProxy, gateway: Gateway
) -> None:
    await gateway.admin.create_session("s1")
    proxy.cuts = 1
    assert (await admin.finish("s1"))["stats"]["finished"]
    await admin.close()
    proxy.cuts = 1
    await admin.delete("s1")
    with pytest.raises(GatewayError, match="no session"):
        await admin.stats("s1")


async def test_a_connection_that_never_holds_is_an_error(
    admin: GatewayAdmin, proxy: CuttingProxy
) -> None:
    proxy.cuts = 1000
    with pytest.raises(GatewayError, match="does not answer POST /admin/sessions") as caught:
        await admin.create_session("s1")
    assert caught.value.status is None


async def test_a_gateway_that_hangs_is_given_up_at_the_deadline() -> None:
    hanging = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hanging.wait()
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        admin = GatewayAdmin(f"http://127.0.0.1:{port}", "key", deadline_s=0.1)
        with pytest.raises(GatewayError, match="does not answer GET"):
            await admin.stats("s1")
        await admin.close()
        hanging.set()


async def test_the_environments_proxies_are_not_used(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    admin = GatewayAdmin(gateway.url, gateway.admin_key)
    await admin.create_session("s1")
    await admin.close()


async def _listed(request: web.Request) -> web.Response:
    return web.json_response(["fine"])


async def test_an_address_is_known_to_reach_this_gateway_or_another(
    gateway: Gateway, engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    assert await gateway.admin.is_reached_at(gateway.url) is True
    assert await gateway.admin.is_reached_at(engine.url) is False
    listing = web.Application()
    listing.router.add_get("/health", _listed)
    async with TestServer(listing) as another:
        assert await gateway.admin.is_reached_at(str(another.make_url(""))) is False
    async with running_gateway(engine.url, tokenizer_dir, tmp_path / "other") as other:
        assert await gateway.admin.is_reached_at(other.url) is False
    assert await gateway.admin.is_reached_at(other.url) is None, "nobody listens there any more"
