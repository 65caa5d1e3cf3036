"""The control socket on a node: it takes a sandbox's listener as the gateway does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import orjson
import pytest

from agentrl.testing.completions import END, Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.services.ray_workers.relay import Relay
from tests.fakes.running_gateway import (
    Agent,
    Gateway,
    deliver,
    deliver_listener,
    open_listener,
    running_gateway,
    user,
)


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as engine:
        yield engine


@pytest.fixture
async def gateway(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> AsyncIterator[Gateway]:
    async with running_gateway(engine.url, tokenizer_dir, tmp_path / "run") as gateway:
        yield gateway


async def ask(agent: Agent, url: str) -> aiohttp.ClientResponse:
    """Take a turn through a listener."""
    return await agent.gateway.http.post(
        url + "/v1/messages",
        data=orjson.dumps(agent.body([user("hi")])),
        headers={"x-api-key": agent.key},
    )


async def test_a_turn_can_be_taken_through_the_relay(
    gateway: Gateway, engine: ScriptedEngine, tmp_path: Path
) -> None:
    agent = await gateway.session()
    async with Relay([gateway.url], tmp_path).control() as control:
        url = await deliver_listener(str(control), agent.key)
        engine.say(f"hello{END}")
        answer = await ask(agent, url)
        assert (await answer.json())["content"][0]["text"] == "hello"
    assert len(gateway.turns("s1")) == 1


async def test_a_key_that_the_gateway_does_not_know_opens_nothing(
    gateway: Gateway, tmp_path: Path
) -> None:
    async with Relay([gateway.url], tmp_path).control() as control:
        with open_listener() as sock:
            answer = await asyncio.to_thread(deliver, str(control), "guess", [sock.fileno()])
    assert answer == b""


async def test_a_gateway_that_is_gone_opens_nothing(tmp_path: Path) -> None:
    async with Relay(["http://127.0.0.1:9"], tmp_path).control() as control:
        with open_listener() as sock:
            answer = await asyncio.to_thread(deliver, str(control), "key", [sock.fileno()])
    assert answer == b""


async def test_a_listener_and_its_control_socket_close_with_the_attempt(
    gateway: Gateway, tmp_path: Path
) -> None:
    agent = await gateway.session()
    async with Relay([gateway.url], tmp_path / "run").control() as control:
        url = await deliver_listener(str(control), agent.key)
    assert not control.exists()
    with pytest.raises(aiohttp.ClientConnectionError):
        await ask(agent, url)


async def test_an_agent_that_leaves_aborts_its_generation(
    gateway: Gateway, engine: ScriptedEngine, tmp_path: Path
) -> None:
    agent = await gateway.session()
    engine.say(Completion(delay_s=60))
    async with Relay([gateway.url], tmp_path).control() as control:
        url = await deliver_listener(str(control), agent.key)
        asking = asyncio.create_task(ask(agent, url))
        await engine.arrived.wait()
        asking.cancel()
        while not engine.seen.aborted:
            await asyncio.sleep(0.01)
