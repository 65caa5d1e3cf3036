"""Calls between processes: many at once, failures told apart, an end that is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import runners.ray_workers
from conf.errors import ConfigError, ExitCode
from runners.gateway.gateway_error import GatewayError
from runners.ray_workers.json_http import Handler, JsonClient, JsonServer
from runners.ray_workers.remote_errors import ExecutorError, NodeLost, Unreachable
from runners.store.store_error import StoreError

ERRORS: list[tuple[BaseException, type[BaseException]]] = [
    (StoreError("full", ExitCode.SERVICE_GONE), StoreError),
    (NodeLost("gone", "node/1"), NodeLost),
    (GatewayError("no", status=503), ExecutorError),
    (ConfigError(["one", "two"]), ExecutorError),
    (asyncio.CancelledError("x"), asyncio.CancelledError),
    (TimeoutError("late"), TimeoutError),
    (ValueError("wrong"), ExecutorError),
]


async def echo(caller: str, body: Any) -> Any:
    return [caller, body]


async def never(caller: str, body: Any) -> Any:
    await asyncio.Event().wait()


async def fail(caller: str, number: int) -> Any:
    raise ERRORS[number][0]


async def large(caller: str, size: int) -> bytes:
    return bytes(range(256)) * (size // 256)


HANDLERS: dict[str, Handler] = {"echo": echo, "never": never, "fail": fail, "large": large}


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[JsonServer, JsonClient]]:
    """Yield a server and the client of one that may call it."""
    server = JsonServer({"secret": "worker"}, HANDLERS)
    port = await server.start("127.0.0.1")
    client = JsonClient(f"http://127.0.0.1:{port}", "secret")
    try:
        yield server, client
    finally:
        await client.close()
        await server.close()


async def call(client: JsonClient, name: str, body: object = None) -> Any:
    return await client.call(name, body, deadline_s=10)


async def test_many_calls_are_answered_at_once() -> None:
    async with serving() as (_, client):
        found = await asyncio.gather(*(call(client, "echo", number) for number in range(150)))
        assert found == [["worker", number] for number in range(150)]


async def test_a_large_answer_arrives_whole() -> None:
    async with serving() as (_, client):
        text = "ä" * 5_000_000
        assert await call(client, "echo", text) == ["worker", text]
        assert await call(client, "large", 1 << 24) == bytes(range(256)) * (1 << 16)


async def test_a_slow_answer_holds_up_no_other() -> None:
    async with serving() as (_, client):
        slow = asyncio.create_task(call(client, "never"))
        assert await call(client, "echo", 1) == ["worker", 1]
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert await call(client, "echo", 2) == ["worker", 2]


@pytest.mark.parametrize(("number", "kind"), [(at, kind) for at, (_, kind) in enumerate(ERRORS)])
async def test_a_failure_is_raised_where_it_was_called(
    number: int, kind: type[BaseException]
) -> None:
    error = ERRORS[number][0]
    async with serving() as (_, client):
        with pytest.raises(kind) as caught:
            await call(client, "fail", number)
        assert str(error) in str(caught.value)
        assert getattr(caught.value, "exit_code", None) == getattr(error, "exit_code", None) or (
            isinstance(error, ValueError)
        )
        assert getattr(caught.value, "node", None) == getattr(error, "node", None)


async def test_a_call_fails_when_either_end_is_closed() -> None:
    async with serving() as (server, client):
        slow = asyncio.create_task(call(client, "never"))
        await call(client, "echo")
        await server.close()
        with pytest.raises(Unreachable, match="does not answer"):
            await slow
        with pytest.raises(Unreachable, match="does not answer"):
            await call(client, "echo")
    async with serving() as (_, client):
        slow = asyncio.create_task(call(client, "never"))
        await call(client, "echo")
        await client.close()
        with pytest.raises(Unreachable):
            await slow
        with pytest.raises(Unreachable, match="is closed"):
            await call(client, "echo")


async def test_a_call_that_is_not_answered_in_time_fails() -> None:
    async with serving() as (_, client):
        with pytest.raises(Unreachable, match=r"did not answer within 0\.1 s"):
            await client.call("never", deadline_s=0.1)


async def test_only_a_caller_with_a_token_is_heard() -> None:
    async with serving() as (_, client):
        for stranger in (JsonClient(client.url, "guess"), JsonClient(client.url, "")):
            with pytest.raises(Unreachable, match="401"):
                await call(stranger, "echo")
            await stranger.close()
        with pytest.raises(Unreachable, match="404"):
            await call(client, "unknown")


def test_no_module_of_the_room_unpickles() -> None:
    modules = list(Path(*runners.ray_workers.__path__).glob("*.py"))
    assert len(modules) > 5
    for module in modules:
        assert "import pickle" not in module.read_text(), module
        assert "cloudpickle" not in module.read_text(), module
