"""Several gateway processes behind one address, as a run starts them."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from runners.gateway.client import GatewayAdmin
from runners.gateway.connections import MAX_UNKNOWN
from runners.gateway.gateway_error import GatewayError
from runners.gateway.replicas.session_key import replica_of
from runners.processes.process_tags import SERVICE_TAG
from runners.processes.service import Service, ServiceError
from runners.store.run_store import RunStore
from runners.testing.completions import Completion, spoken
from runners.testing.scripted_engine import ScriptedEngine
from runners.trajectory.graph import build_segments
from tests.fakes.running_gateway import (
    LIMITS,
    Agent,
    Gateway,
    deliver_listener,
    echo,
    results,
    settings_for,
    user,
)

pytestmark = pytest.mark.integration

CALL = spoken(
    [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}},
    ]
)


@dataclass
class Replicated:
    """A gateway of several processes, with a scripted engine behind it."""

    gateway: Gateway
    engine: ScriptedEngine
    service: Service
    settings: dict[str, Any]

    def processes(self) -> list[psutil.Process]:
        """Return the replicas, by number."""
        found = psutil.Process(self.service.pid).children()
        return sorted(found, key=lambda each: each.environ()["TMPDIR"])


@asynccontextmanager
async def replicated(
    directory: Path, tokenizer_dir: Path, replicas: int = 2, **changes: Any
) -> AsyncIterator[Replicated]:
    """Start a gateway's process, and end it."""
    run_dir = directory / "run"
    RunStore.create(run_dir, {}).close()
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as http:
        engine.always = Completion(CALL)
        changed = {"replicas": replicas, **changes}
        settings = settings_for(engine.url, tokenizer_dir, run_dir, **changed).model_dump(
            mode="json"
        )
        log = directory / "gateway.log"
        service = await Service.start(
            "gateway", "runners.gateway", settings, log=log, deadline_s=120
        )
        url, key = service.info["url"], service.info["admin_key"]
        admin = GatewayAdmin(url, key)
        gateway = Gateway(url, service.info["control"], admin, key, run_dir, http)
        try:
            yield Replicated(gateway, engine, service, settings)
        finally:
            await admin.close()
            await service.stop()


async def converse(agent: Agent, *, stream: bool, turns: int = 3) -> None:
    """Take turns, each of which continues the one before."""
    messages = [user(f"Task of {agent.session_id}.")]
    for _ in range(turns):
        if stream:
            events = await agent.stream(agent.body(messages))
            assert events[-1]["type"] == "message_stop"
        answer = await agent.ask(messages)  # of a turn that was streamed: the same answer again
        messages += [echo(answer), results(answer, "calc.py")]


def asked(engine: ScriptedEngine) -> Counter[str]:
    """Return what an engine was asked for, in no order and without the requests' ids."""
    return Counter(
        json.dumps([body["input_ids"], body["sampling_params"]], sort_keys=True)
        for body in engine.seen.requests
    )


async def play(running: Replicated) -> None:
    """Let 40 sessions work at once, most of them on two connections that they share."""
    gateway = running.gateway
    agents = [await gateway.session(f"s{number:02}", seed=number) for number in range(40)]

    async def watch(http: aiohttp.ClientSession) -> None:
        """Ask what is about all sessions, on a connection of one."""
        for _ in range(10):
            async with http.get(f"{gateway.url}/health") as answer:
                assert (await answer.json())["sessions"] == 40
            bearer = {"authorization": f"Bearer {gateway.admin_key}"}
            url = f"{gateway.url}/admin/sessions/s07"
            async with http.get(url, headers=bearer) as answer:
                assert (await answer.json())["session_id"] == "s07"

    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as fronts,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as replicas,
        asyncio.TaskGroup() as tasks,
    ):
        # whose a connection is its first request says: the front's, and one replica's
        await (await fronts.get(f"{gateway.url}/health")).read()
        models = f"{gateway.url}/v1/models"
        await (await replicas.get(models, headers={"x-api-key": agents[0].key})).read()
        for http, part in ((fronts, agents[1::3]), (replicas, agents[2::3])):
            for agent in part:
                agent.gateway = Gateway(**{**vars(gateway), "http": http})
            tasks.create_task(watch(http))
        for number, agent in enumerate(agents):
            tasks.create_task(converse(agent, stream=number % 2 == 0))


async def test_forty_sessions_take_the_same_turns_through_two_processes_as_through_one(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    seen, stored = [], []
    for replicas in (1, 2):
        async with replicated(tmp_path / str(replicas), tokenizer_dir, replicas) as running:
            await play(running)
            gateway = running.gateway
            if replicas == 2:
                assert len(running.processes()) == 2
                with RunStore.open(gateway.run_dir, read_only=True) as store:
                    rows = store.query(
                        "SELECT array_file, count(DISTINCT session_id), count(*) FROM turn "
                        "GROUP BY array_file"
                    )
                assert [tuple(row) for row in rows] == [(0, 20, 60), (1, 20, 60)]
            for number in range(40):
                ended = await gateway.admin.finish(f"s{number:02}")
                assert ended["stats"]["turns"] == 3
                assert ended["stats"]["breaks"] == []
                await gateway.admin.delete(f"s{number:02}")
            async with gateway.http.get(f"{gateway.url}/health") as answer:
                assert (await answer.json())["sessions"] == 0
            seen.append(asked(running.engine))
        with RunStore.open(tmp_path / str(replicas) / "run", read_only=True) as store:
            store.verify_arrays()
            segments = [build_segments(store.turns(f"s{number:02}")) for number in range(40)]
            stored.append([each.tokens.tolist() for chains in segments for each in chains])
    assert seen[0] == seen[1]
    assert stored[0] == stored[1]
    assert len(stored[0]) == 40


@pytest.fixture
async def running(tmp_path: Path, tokenizer_dir: Path) -> AsyncIterator[Replicated]:
    async with replicated(tmp_path, tokenizer_dir, keep_rollouts=True) as running:
        yield running


async def test_a_key_opens_its_own_session_whatever_it_is_sent_to(running: Replicated) -> None:
    gateway = running.gateway
    first, second = await gateway.session("first"), await gateway.session("second")
    assert {replica_of(first.key), replica_of(second.key)} == {0, 1}
    for forged in (
        f"{replica_of(second.key):02d}{first.key[2:]}",  # another process
        f"63{first.key[2:]}",  # a process that does not exist
        first.key[:-1] + ("A" if first.key[-1] != "A" else "B"),
        "nothing",
    ):
        for path in ("/v1/messages", "/admin/sessions"):
            status, answer = await Agent(gateway, "forged", forged).post(path, {})
            assert status == 401, (forged, answer)
    status, _ = await first.post("/v1/nowhere", {})
    assert status == 404
    with pytest.raises(GatewayError, match="exists already"):
        await gateway.admin.create_session("first")
    with pytest.raises(GatewayError, match="no session 'third'"):
        await gateway.admin.stats("third")
    # a sandbox's listener is served by the process of its session, for its session alone
    for agent in (first, second):
        url = await deliver_listener(gateway.control, agent.key)
        at_sandbox = Gateway(**{**vars(gateway), "url": url})
        await Agent(at_sandbox, agent.session_id, agent.key).ask([user("hello")])
        status, _ = await Agent(at_sandbox, "other", (first, second)[agent is first].key).post(
            "/v1/messages", {}
        )
        assert status == 401


async def raw_exchange(url: str, *pieces: bytes) -> bytes:
    """Send bytes on one connection; return all that comes back until it is closed."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    answered = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answered


async def test_requests_that_are_no_requests_are_answered_as_by_one_process(
    running: Replicated,
) -> None:
    gateway = running.gateway
    agent = await gateway.session("s")
    head = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-api-key: {agent.key}\r\n"
    for request, status in (
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"G ET ET\r\n\r\n", b"400"),
        (head.encode() + b"x-long: " + b"a" * 70_000 + b"\r\n\r\n", b"400"),
        (head.encode() + b"x-many: a\r\n" * 50 + b"\r\n", b"200"),
        (b"\r\n" + head.encode() + b"\r\n", b"200"),
        (head.encode().replace(b"/v1/models", b"http://elsewhere/v1/models") + b"\r\n", b"200"),
        (head.encode().replace(b"/v1/models", b"//elsewhere:1/v1/models") + b"\r\n", b"404"),
    ):
        answered = await raw_exchange(gateway.url, request)
        assert answered.split(b" ")[1] == status, (request[:80], answered[:200])
    # paths and heads that a replica reads otherwise than the front: they do not go round
    long = b"x-%d: " + b"a" * 900 + b"\r\n"
    many = b"".join(long % number for number in range(75))
    end = b"host: x\r\nconnection: close\r\n\r\n"
    for request, status in (
        (b"GET /%61dmin/sessions/s HTTP/1.1\r\n" + end, b"401"),
        (b"GET /healt%68 HTTP/1.1\r\n" + end, b"200"),
        (b"GET /health HTTP/1.1\r\n" + many + end, b"200"),
    ):
        answered = await asyncio.wait_for(raw_exchange(gateway.url, request), 5)
        assert answered.split(b" ")[1] == status, answered[:200]
    # two requests in one piece, of which the second is another session's
    other = await gateway.session("t")
    mixed = head.replace("connection: close\r\n", "") + "\r\n" + head.replace(agent.key, other.key)
    answered = await raw_exchange(gateway.url, mixed.encode() + b"\r\n")
    assert answered.count(b"HTTP/1.1 200") == 2


async def test_hundreds_of_connections_that_come_at_once_and_send_nothing_hold_up_nobody(
    running: Replicated,
) -> None:
    gateway = running.gateway
    agent = await gateway.session("s")
    front = psutil.Process(running.service.pid)
    at_first = front.num_fds()
    front.suspend()  # so that it finds them in one burst
    port = int(gateway.url.rpartition(":")[2])
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(800)]
    for sock in idle[::2]:
        sock.sendall(b"POST /v1/messages HTTP/1.1\r\n")
    front.resume()
    async with aiohttp.ClientSession() as http:
        agent.gateway = Gateway(**{**vars(gateway), "http": http})
        await agent.ask([user("hello")])
    assert front.num_fds() - at_first <= MAX_UNKNOWN + 4
    for sock in idle:
        sock.close()


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


async def test_a_connection_of_many_sessions_stays_open_as_long_as_it_is_used(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    limits = {**LIMITS, "client_s": 1.0}
    async with replicated(tmp_path, tokenizer_dir, limits=limits) as running:
        gateway = running.gateway
        agents = [await gateway.session(f"s{number}") for number in range(2)]
        running.engine.always = Completion(CALL, delay_s=1.5)
        connections: list[object] = []

        async def note(*made: object) -> None:
            connections.append(made)

        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(note)
        one = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=one, trace_configs=[trace]) as http:
            await (await http.get(f"{gateway.url}/health")).read()
            for agent in agents:  # each turn takes longer than a connection may say nothing
                agent.gateway = Gateway(**{**vars(gateway), "http": http})
                await agent.ask([user("hello")])
            models = f"{gateway.url}/v1/models"
            many = {"x-api-key": agents[0].key, **{f"x-{number}": "a" for number in range(90)}}
            for _ in range(20):  # lines, faster than somebody without a key may send them
                async with http.get(models, headers=many) as answer:
                    assert (answer.status, await answer.read() != b"") == (200, True)
        assert len(connections) == 1
        head = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: {agents[0].key}\r\n\r\n"
        health = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
        answered = await raw_exchange(gateway.url, (health + head).encode())
        assert answered.count(b"HTTP/1.1 200") == 2, "and it was ended when it was not used"


async def test_a_killed_process_loses_its_own_sessions_alone_and_is_started_again(
    running: Replicated,
) -> None:
    gateway, engine = running.gateway, running.engine
    agents = [await gateway.session(f"s{number}", task="t") for number in range(4)]
    for agent in agents:
        await converse(agent, stream=False, turns=1)
    finished = await gateway.admin.finish("s0", 1.0)
    assert finished["rollout"]["reward"] == 1.0
    engine.always = Completion(CALL, delay_s=0.7)
    engine.arrived.clear()
    # its own connections: one that was the killed process's takes its requests with it
    async with aiohttp.ClientSession() as own:
        agents[1].gateway = Gateway(**{**vars(gateway), "http": own})
        surviving = asyncio.create_task(converse(agents[1], stream=True, turns=3))
        await engine.arrived.wait()
        victim = running.processes()[0]
        assert replica_of(agents[0].key) == replica_of(agents[2].key) == 0
        victim.kill()
        await surviving
    engine.always = Completion(CALL)
    await until_it_is_there(agents[2])
    status, _ = await agents[2].post("/v1/messages", agents[2].body([user("more")]))
    assert status == 401, "it knows no session of the killed one"
    for session_id in ("s0", "s2"):
        with pytest.raises(GatewayError, match=f"no session '{session_id}'") as caught:
            await gateway.admin.finish(session_id)
        assert caught.value.status == 404
    new = [await gateway.session(f"n{number}", task="t") for number in range(2)]
    assert [replica_of(agent.key) for agent in new] == [0, 0], "where the fewest are"
    await converse(new[0], stream=True, turns=1)
    await gateway.admin.finish("s1", 0.5)
    with RunStore.open(gateway.run_dir, read_only=True) as store:
        store.verify_arrays()
        kept = {each.rollout_id: each for each in store.rollouts()}
    assert {name: (each.outcome.code, each.reward, each.turns) for name, each in kept.items()} == {
        "s0": ("policy.finished", 1.0, 1),
        "s1": ("policy.finished", 0.5, 3),
        "s2": ("infra.gateway", None, 1),
    }
    assert {each.group for each in kept.values()} == {0}
    assert len({each.member for each in kept.values()}) == 3
    assert "its 2 sessions are lost" in (gateway.run_dir.parent / "gateway.log").read_text()
    # a pause that began before holds for one that is started within it
    await gateway.admin.pause(5.0)
    running.processes()[1].kill()
    before = len(engine.seen.requests)
    await until_it_is_there(agents[1])
    agent = await gateway.session("late")
    assert replica_of(agent.key) == 1
    waiting = asyncio.create_task(agent.ask([user("now")]))
    await asyncio.wait({waiting}, timeout=0.3)
    assert len(engine.seen.requests) == before
    await gateway.admin.resume()
    await waiting


async def test_a_process_that_hangs_is_killed_and_holds_up_no_pause(running: Replicated) -> None:
    gateway = running.gateway
    agents = [await gateway.session(f"s{number}") for number in range(2)]
    hung = running.processes()[0]
    hung.suspend()
    try:
        await gateway.admin.pause(1.0)  # answered when it is dead
        await gateway.admin.resume()
    finally:
        with suppress(psutil.NoSuchProcess):
            hung.resume()
    await agents[1].ask([user("hello")])
    await until_it_is_there(agents[0])
    assert "gateway-0 lives and answers nothing" in (
        (gateway.run_dir.parent / "gateway.log").read_text()
    )


async def test_sessions_of_a_process_that_is_killed_at_the_end_are_kept_too(
    running: Replicated,
) -> None:
    gateway = running.gateway
    agents = [await gateway.session(f"s{number}") for number in range(4)]
    for agent in agents:
        await converse(agent, stream=False, turns=1)
    await gateway.admin.finish("s0", 1.0)
    front = psutil.Process(running.service.pid)
    victim = running.processes()[0]
    front.suspend()
    victim.kill()
    front.terminate()  # it learns both at once
    front.resume()
    await asyncio.to_thread(front.wait, 30)
    with RunStore.open(gateway.run_dir, read_only=True) as store:
        kept = {each.rollout_id: (each.outcome.code, each.reward) for each in store.rollouts()}
    lost = ("infra.gateway", None)
    assert kept == {"s0": ("policy.finished", 1.0), "s1": lost, "s2": lost, "s3": lost}


async def test_nothing_outlives_a_front_that_is_killed(tmp_path: Path, tokenizer_dir: Path) -> None:
    async with replicated(tmp_path, tokenizer_dir) as running:
        front = psutil.Process(running.service.pid)
        replicas = running.processes()
        tag = front.environ()[SERVICE_TAG]
        assert {each.environ()[SERVICE_TAG] for each in replicas} == {tag}, "found by the ledger's"
        place = Path(front.environ()["TMPDIR"])
        assert all(Path(each.environ()["TMPDIR"]).parent == place for each in replicas)
        ended: asyncio.Future[ServiceError] = asyncio.get_running_loop().create_future()
        running.service.watch(ended.set_result)
        front.send_signal(signal.SIGKILL)
        assert "ended unexpectedly (exit -9)" in str(await ended)
        gone, alive = await asyncio.to_thread(psutil.wait_procs, replicas, 20)
        assert not alive
        assert len(gone) == 2
    assert not place.exists()


async def test_a_disk_that_fails_one_process_ends_the_gateway_with_the_reason(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with replicated(tmp_path, tokenizer_dir) as running:
        ended: asyncio.Future[ServiceError] = asyncio.get_running_loop().create_future()
        running.service.watch(ended.set_result)
        running.processes()[1].rlimit(psutil.RLIMIT_FSIZE, (200_000, 200_000))

        async def fill() -> None:
            for number in range(2000):
                await running.gateway.admin.create_session(f"s{number}")

        with pytest.raises(GatewayError):
            await fill()
        error = str(await ended)
    assert "exit 4" in error
    assert "store.sqlite" in error
