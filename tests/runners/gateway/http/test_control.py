"""The control socket: a sandbox's own listener, for its own session."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import orjson
import psutil
import pytest

from agentrl.testing.completions import END, Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.http.control import STALE_S, ControlSocket, remove_stale_directories
from tests.fakes.running_gateway import (
    Agent,
    Gateway,
    deliver,
    deliver_listener,
    open_listener,
    user,
)


async def get_models(agent: Agent, url: str, key: str | None = None) -> int:
    async with agent.gateway.http.get(
        url + "/v1/models", headers={"x-api-key": agent.key if key is None else key}
    ) as response:
        return response.status


@pytest.mark.parametrize("glued", [False, True])
async def test_a_turn_can_be_taken_through_a_delivered_listener(
    glued: bool, gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    url = await deliver_listener(gateway.control, agent.key, glued=glued)
    engine.say(f"hello{END}")
    async with gateway.http.post(
        url + "/v1/messages",
        data=orjson.dumps(agent.body([user("hi")])),
        headers={"x-api-key": agent.key},
    ) as response:
        assert (await response.json())["content"][0]["text"] == "hello"
    assert len(gateway.turns("s1")) == 1


async def test_a_listener_serves_its_own_session_only_and_no_administration(
    gateway: Gateway,
) -> None:
    agent, other = await gateway.session("s1"), await gateway.session("s2")
    url = await deliver_listener(gateway.control, agent.key)
    assert await get_models(agent, url) == 200
    assert await get_models(agent, url, other.key) == 401
    assert await get_models(agent, url, "guess") == 401
    async with gateway.http.get(
        url + "/admin/sessions/s1", headers={"x-api-key": gateway.admin_key}
    ) as response:
        assert response.status == 404


@pytest.mark.parametrize("end", ["finish", "delete"])
async def test_a_listener_ends_with_its_session(end: str, gateway: Gateway) -> None:
    agent = await gateway.session()
    url = await deliver_listener(gateway.control, agent.key)
    assert await get_models(agent, url) == 200
    if end == "finish":
        await agent.finish()
    else:
        await gateway.admin.delete("s1")
    with pytest.raises(aiohttp.ClientConnectionError):
        await get_models(agent, url)


async def test_a_turn_in_flight_on_a_listener_is_aborted_when_the_session_ends(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    url = await deliver_listener(gateway.control, agent.key)
    engine.say(Completion(f"hello{END}", delay_s=30))

    async def ask() -> int:
        async with gateway.http.post(
            url + "/v1/messages",
            data=orjson.dumps(agent.body([user("hi")])),
            headers={"x-api-key": agent.key},
        ) as response:
            return response.status

    asking = asyncio.create_task(ask())
    await engine.arrived.wait()
    await gateway.admin.delete("s1")
    assert await asking == 403


def no_handle() -> list[socket.socket]:
    return []


def two_listeners() -> list[socket.socket]:
    return [open_listener(), open_listener()]


def connected_pair() -> list[socket.socket]:
    one, two = socket.socketpair()
    two.close()
    return [one]


def not_listening() -> list[socket.socket]:
    return [socket.socket(socket.AF_INET, socket.SOCK_STREAM)]


@pytest.mark.parametrize("make", [no_handle, two_listeners, connected_pair, not_listening])
async def test_anything_but_one_listening_tcp_socket_is_refused(
    make: Callable[[], list[socket.socket]], gateway: Gateway
) -> None:
    agent = await gateway.session()
    sockets = make()
    handles = [sock.fileno() for sock in sockets]
    if handles:
        sending = asyncio.to_thread(deliver, gateway.control, agent.key, handles)
        assert await sending == b""
    else:
        reader, writer = await asyncio.open_unix_connection(gateway.control)
        writer.write(b'{"session_key": "x"}\n' + b"x" * 5000)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
    for sock in sockets:
        sock.close()
    url = await deliver_listener(gateway.control, agent.key)
    assert await get_models(agent, url) == 200


@pytest.mark.parametrize("line", ["not json", "[]", '{"session_key": 7}', '{"session_key": "x"}'])
async def test_a_wrong_line_is_refused(line: str, gateway: Gateway) -> None:
    def send() -> bytes:
        with open_listener() as sock, socket.socket(socket.AF_UNIX) as control:
            control.connect(gateway.control)
            socket.send_fds(control, [line.encode() + b"\n"], [sock.fileno()])
            try:
                return control.recv(16)
            except ConnectionError:
                return b""

    assert await asyncio.to_thread(send) == b""


async def test_a_finished_session_gets_no_listener(gateway: Gateway) -> None:
    agent = await gateway.session()
    await agent.finish()
    with open_listener() as sock:
        sending = asyncio.to_thread(deliver, gateway.control, agent.key, [sock.fileno()])
        assert await sending == b""


async def test_the_socket_is_private_and_goes_with_the_gateway(gateway: Gateway) -> None:
    path = Path(gateway.control)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


BATCH = 5
POOLED = 3 * BATCH
"""Connections that the pools of the client, of the administrator and of the gateway may hold more
than before, as their calls happen to meet.
"""


async def run_in_batches(count: int, play: Callable[[int], Awaitable[None]]) -> None:
    for first in range(0, count, BATCH):
        await asyncio.gather(*(play(first + i) for i in range(BATCH)))


@pytest.mark.integration
async def test_neither_descriptors_nor_tasks_are_left_behind(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    async def play(number: int) -> None:
        agent = await gateway.session(f"s{number}")
        url = await deliver_listener(gateway.control, agent.key)
        async with aiohttp.ClientSession() as http:  # stays connected until the session ends
            body = orjson.dumps({**agent.body([user("hi")]), "stream": True})
            headers = {"x-api-key": agent.key}
            async with http.post(url + "/v1/messages", data=body, headers=headers) as answer:
                assert b"message_stop" in await answer.read()
            await agent.finish()
            await gateway.admin.delete(agent.session_id)

    engine.always = Completion(f"hello{END}")
    process = psutil.Process()
    await run_in_batches(20, play)
    await asyncio.sleep(0.05)
    handles, tasks = process.num_fds(), len(asyncio.all_tasks())
    await run_in_batches(100, lambda number: play(1000 + number))
    for _ in range(100):  # what is being closed is closed soon
        if process.num_fds() <= handles + 2 * POOLED and len(asyncio.all_tasks()) <= tasks + POOLED:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{handles} → {process.num_fds()}, {tasks} → {len(asyncio.all_tasks())}")


async def test_the_descriptors_of_a_refused_delivery_are_closed(gateway: Gateway) -> None:
    agent = await gateway.session()

    async def refused(key: str, sockets: list[socket.socket]) -> None:
        handles = [sock.fileno() for sock in sockets]
        assert await asyncio.to_thread(deliver, gateway.control, key, handles) == b""
        for sock in sockets:
            sock.close()

    await refused("warm-up", [open_listener()])
    process = psutil.Process()
    handles = process.num_fds()
    for _ in range(5):
        await refused(agent.key, two_listeners())
        await refused(agent.key, not_listening())
        await refused("unknown key", [open_listener()])
    assert process.num_fds() == handles


def test_directories_of_killed_gateways_are_removed_and_others_are_kept(tmp_path: Path) -> None:
    long_ago = time.time() - 2 * STALE_S
    listeners = []
    for name in ("killed", "starting", "serving"):
        directory = tmp_path / f"agentrl-gateway-{name}"
        directory.mkdir(mode=0o700)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(directory / "control"))
        listeners.append(listener)
        if name != "starting":
            os.utime(directory / "control", (long_ago, long_ago))
    listeners[0].close()
    listeners[2].listen()
    (tmp_path / "agentrl-gateway-other").mkdir()
    remove_stale_directories(tmp_path)
    left = sorted(path.name.removeprefix("agentrl-gateway-") for path in tmp_path.iterdir())
    assert left == ["other", "serving", "starting"]
    for listener in listeners[1:]:
        listener.close()


async def test_a_look_at_who_listens_is_no_failed_delivery(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    directory = Path(gateway.control).parent
    long_ago = time.time() - STALE_S - 10
    os.utime(gateway.control, (long_ago, long_ago))
    remove_stale_directories(directory.parent)
    assert directory.exists()
    agent = await gateway.session()
    url = await deliver_listener(gateway.control, agent.key)  # served after the look
    assert await get_models(agent, url) == 200
    assert "delivery failed" not in caplog.text
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as half:
        half.connect(str(gateway.control))
        half.send(b"{")
    async with asyncio.timeout(10):
        while "delivery failed: closed before" not in caplog.text:
            await asyncio.sleep(0.01)


async def test_a_place_whose_names_are_too_long_for_a_socket_is_not_used(tmp_path: Path) -> None:
    async def serve(*_: object) -> None: ...

    for place in (tmp_path, tmp_path / ("d" * 100)):
        place.mkdir(exist_ok=True)
        control = ControlSocket(serve, place)
        control.start()
        assert control.path.is_socket()
        assert control.path.is_relative_to(place) == (place == tmp_path)
        await control.close()
        assert not control.path.parent.exists()
