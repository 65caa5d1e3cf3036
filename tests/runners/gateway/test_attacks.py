"""What a policy can send with its session's key: each attack is refused, and costs others nothing.

The agent here is the attacker; ``another`` is a session that works.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentrl.testing.completions import END, Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from tests.fakes.running_gateway import (
    LIMITS,
    Agent,
    Gateway,
    deliver_listener,
    running_gateway,
    user,
)

DONE = f"Done.{END}"
PATHS = (
    *("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/responses"),
    "/v1beta/models/m:generateContent",
)


@pytest.fixture
async def gateway(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> AsyncIterator[Gateway]:
    """Serve a gateway whose processes work on long texts."""
    async with limited(engine, tokenizer_dir, tmp_path) as gateway:
        yield gateway


@asynccontextmanager
async def limited(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path, **limits: Any
) -> AsyncIterator[Gateway]:
    """Serve a gateway with other limits."""
    async with running_gateway(
        engine.url,
        tokenizer_dir,
        tmp_path / "run",
        text_processes=True,
        limits={**LIMITS, "text_workers": 1, **limits},
    ) as gateway:
        yield gateway


async def check_works(agent: Agent, engine: ScriptedEngine, text: str = "still here?") -> None:
    """Take a turn with a session that does nothing wrong."""
    engine.say(DONE)
    assert (await agent.ask([user(text)]))["stop_reason"] == "end_turn"


async def open_raw(
    url: str, first: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and send some bytes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(first)
    await writer.drain()
    return reader, writer


async def is_ended(reader: asyncio.StreamReader) -> bool:
    """Return whether the gateway ended a connection; waits until it does."""
    try:
        return not await reader.read(1)
    except ConnectionError:
        return True


async def test_deep_json_and_millions_of_values_are_refused_in_the_dialects_envelope(
    gateway: Gateway,
) -> None:
    """One gateway for all: the process that works on such bodies takes a second to start."""
    agent = await gateway.session()
    deep = b'{"metadata":' + b'{"a":' * 100_000
    many = b'{"messages":[' + b"[]," * 2_000_000 + b"[]]}"
    for number, path in enumerate(PATHS, 1):
        for body, named in ((deep, "nested"), (many, "values")):
            status, answer = await agent.post(path, body)
            kind = answer["error"].get("type", answer["error"].get("status"))
            assert (status, kind.upper()[:7]) == (400, "INVALID"), path
            assert named in answer["error"]["message"], path
        assert (await agent.stats())["over_limit"] == 2 * number, path


@pytest.mark.parametrize(
    ("path", "kind", "code"),
    [
        ("/v1/messages", "rate_limit_error", None),
        ("/v1/chat/completions", "requests", "rate_limit_exceeded"),
        ("/v1/responses", "requests", "rate_limit_exceeded"),
    ],
)
async def test_requests_beyond_the_sessions_number_get_429_and_others_are_answered(
    path: str,
    kind: str,
    code: str | None,
    engine: ScriptedEngine,
    tokenizer_dir: Path,
    tmp_path: Path,
) -> None:
    async with limited(engine, tokenizer_dir, tmp_path, requests=2) as gateway:
        agent, another = await gateway.session("s1"), await gateway.session("s2")
        engine.always = Completion(DONE, delay_s=600)
        held = [
            asyncio.create_task(agent.ask([user(f"wait {number}")], betas=[str(number)]))
            for number in range(2)
        ]
        while (await agent.stats())["in_flight"] < 2:
            await asyncio.sleep(0.01)
        async with gateway.http.post(
            gateway.url + path, data=b"{}", headers={"x-api-key": agent.key}
        ) as response:
            answer = orjson.loads(await response.read())
            assert (response.status, response.headers["retry-after"]) == (429, "1")
        assert (answer["error"]["type"], answer["error"].get("code")) == (kind, code)
        assert (await agent.stats())["over_limit"] == 1
        await check_works(another, engine)
        for task in held:
            task.cancel()


async def test_bytes_beyond_the_sessions_size_get_429(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    async with limited(engine, tokenizer_dir, tmp_path, requests_mb=1) as gateway:
        agent = await gateway.session()
        status, answer = await agent.post("/v1/messages", b" " * (1 << 20) + b"{}")
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
        await check_works(agent, engine)


async def test_a_body_that_comes_slowly_is_given_up(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    async with limited(engine, tokenizer_dir, tmp_path, client_s=0.2) as gateway:
        agent = await gateway.session()
        head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {agent.key}\r\n"
        reader, writer = await open_raw(
            gateway.url, f"{head}content-length: 1000\r\n\r\n{{".encode()
        )
        line = await reader.readline()
        assert line.startswith(b"HTTP/1.1 400")
        assert (await agent.stats())["over_limit"] == 1
        writer.close()


async def test_headers_that_come_slowly_are_given_up(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    async with limited(engine, tokenizer_dir, tmp_path, client_s=0.2) as gateway:
        reader, writer = await open_raw(gateway.url, b"POST /v1/messages HTTP/1.1\r\nx-a: ")
        assert await is_ended(reader)
        writer.close()


async def test_a_keep_alive_connection_with_a_key_may_be_silent_for_longer(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    async with limited(engine, tokenizer_dir, tmp_path, client_s=0.2) as gateway:
        agent = await gateway.session()
        request = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: {agent.key}\r\n\r\n".encode()
        reader, writer = await open_raw(gateway.url, request)
        silent, other = await open_raw(gateway.url)  # opened later: ended when its time is over
        assert await is_ended(silent)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.write(request)
        await reader.readuntil(b"HTTP/1.1 200")
        writer.close()
        other.close()


async def test_an_answer_that_is_not_read_is_given_up(
    engine: ScriptedEngine,
    tokenizer_dir: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with limited(engine, tokenizer_dir, tmp_path, client_s=0.5) as gateway:
        agent, another = await gateway.session("s1"), await gateway.session("s2")
        request = (
            f"GET /v1/models/{'m' * 7000} HTTP/1.1\r\nhost: x\r\nx-api-key: {agent.key}\r\n\r\n"
        )
        _, writer = await open_raw(gateway.url)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request.encode() * 2000)  # answers of more than the kernel's buffers hold
        while not (await agent.stats())["over_limit"]:
            await asyncio.sleep(0.05)
        await check_works(another, engine)
        writer.close()
    assert not caplog.records  # a client that leaves is no error


@pytest.mark.parametrize(
    "request_", [b"GET / HTTP/9.9", b"GET / HTTP/1.1\r\nno header", b"GET /" + b"a" * 70_000]
)
async def test_what_is_no_http_is_refused_and_not_logged(
    request_: bytes, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await open_raw(gateway.url, request_ + b"\r\n\r\n")
    assert b" 400 " in await reader.readline()
    writer.close()
    assert not caplog.records


async def test_connections_without_a_key_do_not_shut_others_out(gateway: Gateway) -> None:
    agent = await gateway.session()
    opened = [await open_raw(gateway.url) for _ in range(400)]
    async with gateway.http.get(
        gateway.url + "/v1/models", headers={"x-api-key": agent.key}
    ) as response:
        assert response.status == 200
    assert await is_ended(opened[0][0]), "the oldest is ended"
    for _, writer in opened:
        writer.close()


async def test_connections_with_a_key_are_counted(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    async with limited(engine, tokenizer_dir, tmp_path, connections=3) as gateway:
        agent, another = await gateway.session("s1"), await gateway.session("s2")
        request = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: {agent.key}\r\n\r\n".encode()
        opened = [await open_raw(gateway.url, request) for _ in range(5)]
        lines = [await reader.readline() for reader, _ in opened]
        assert sorted(line.split()[1] for line in lines) == [b"200"] * 3 + [b"429"] * 2
        await check_works(another, engine)
        for _, writer in opened:
            writer.close()


async def test_connections_to_a_sandboxs_own_listener_are_counted_without_a_key(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    async with limited(engine, tokenizer_dir, tmp_path, connections=3) as gateway:
        agent = await gateway.session()
        url = await deliver_listener(gateway.control, agent.key)
        opened = [await open_raw(url) for _ in range(5)]
        while (await agent.stats())["over_limit"] < 2:
            await asyncio.sleep(0.01)
        for _, writer in opened:
            writer.close()


async def send_in_chunks(url: str, key: str, body: bytes, size: int) -> bytes:
    """Send a body in chunks of a size; return the answer's first line, "" if there is none."""
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n"
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    coded = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    reader, writer = await open_raw(url)
    try:
        writer.write(head.encode() + b"transfer-encoding: chunked\r\n\r\n" + coded + b"0\r\n\r\n")
        await writer.drain()
        return await reader.readline()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.integration
@pytest.mark.parametrize("own", [True, False], ids=["a listener of its own", "the common address"])
async def test_a_body_in_tiny_chunks_is_not_read_to_its_end(
    own: bool, gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent, another = await gateway.session("s1"), await gateway.session("s2")
    url = await deliver_listener(gateway.control, agent.key) if own else gateway.url
    body = orjson.dumps(agent.body([user("a" * 500_000)]))
    assert await send_in_chunks(url, agent.key, body, 1) == b""
    assert (await agent.stats())["over_limit"] == int(own)
    await check_works(another, engine)
    engine.say(DONE)
    body = orjson.dumps(agent.body([user("a" * 50_000)]))
    assert b"200" in await send_in_chunks(url, agent.key, body, 2000)


@pytest.mark.parametrize("encoding", ["gzip", "br", "junk", "\xff"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_compressed_body_is_refused_whatever_it_unpacks_to(
    path: str, encoding: str, gateway: Gateway
) -> None:
    agent = await gateway.session()
    reader, writer = await open_raw(
        gateway.url,
        f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {agent.key}\r\n"
        f"content-encoding: {encoding}\r\ncontent-length: 4\r\n\r\n\x1f\x1f\x1f\x1f".encode(
            "latin-1"
        ),
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    text = (await reader.readuntil(b"}}")).decode()
    assert "send the body uncompressed" in text
    writer.close()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/models", "/admin/sessions"])
async def test_a_key_that_is_no_utf8_is_an_unknown_key(path: str, gateway: Gateway) -> None:
    method = "GET" if path == "/v1/models" else "POST"
    reader, writer = await open_raw(
        gateway.url,
        f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n".encode()
        + b"authorization: Bearer \xff\xfe\r\n\r\n",
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 401")
    writer.close()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_are_none_are_refused_by_the_admin_api(
    number: str, gateway: Gateway
) -> None:
    agent = await gateway.session()
    headers = {"authorization": f"Bearer {gateway.admin_key}"}
    for path, key, body in (
        ("/admin/sessions/s1/finish", "reward", f'{{"reward": {number}}}'),
        ("/admin/sessions", "temperature", f'{{"sampling": {{"temperature": {number}}}}}'),
        ("/admin/pause", "deadline_s", f'{{"deadline_s": {number}}}'),
    ):
        status, answer = await agent.post(path, body.encode(), **headers)
        assert status == 400, path
        assert key in answer["error"]["message"]


async def test_a_long_unknown_key_is_not_repeated_in_full(gateway: Gateway) -> None:
    agent = await gateway.session()
    status, answer = await agent.post("/v1/messages", orjson.dumps({"x" * 1_000_000: 1}))
    assert status == 400
    assert len(answer["error"]["message"]) <= 2000
