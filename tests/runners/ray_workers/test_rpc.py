"""A line: questions both ways at once, failures told apart, an end that is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError, ExitCode
from runners.gateway.client import GatewayError
from runners.ray_workers.remote_errors import ExecutorError, NodeLost, raised, trouble_of
from runners.ray_workers.rpc import Line
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


async def echo(name: str, arguments: tuple[Any, ...]) -> Any:
    if name == "never":
        await asyncio.Event().wait()
    if name == "raise":
        raise ERRORS[arguments[0]][0]
    return name, arguments


@asynccontextmanager
async def line(tmp_path: Path) -> AsyncIterator[tuple[Line, Line]]:
    """Give both ends of a line."""
    ends: asyncio.Queue[Line] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = Line(reader, writer, echo)
        ends.put_nowait(there)
        await there.serve()

    server = await asyncio.start_unix_server(take, tmp_path / "l")
    here = Line(*await asyncio.open_unix_connection(tmp_path / "l"), echo)
    serving = asyncio.create_task(here.serve())
    yield here, await ends.get()
    here.close()
    await serving
    server.close()


async def test_both_ends_ask_and_answer_at_once(tmp_path: Path) -> None:
    async with line(tmp_path) as (here, there):
        asked = [end.ask("a", number) for number in range(50) for end in (here, there)]
        found = await asyncio.gather(*asked)
        assert found == [("a", (number,)) for number in range(50) for _ in "ht"]


async def test_a_large_answer_arrives_whole(tmp_path: Path) -> None:
    async with line(tmp_path) as (here, _):
        large = bytes(range(256)) * 40_000
        assert await here.ask("a", large) == ("a", (large,))


async def test_a_slow_answer_holds_up_no_other(tmp_path: Path) -> None:
    async with line(tmp_path) as (here, _):
        slow = asyncio.create_task(here.ask("never"))
        assert await here.ask("b") == ("b", ())
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert await here.ask("c") == ("c", ())


async def test_what_is_asked_when_the_line_is_cut_fails_and_later_questions_too(
    tmp_path: Path,
) -> None:
    async with line(tmp_path) as (here, there):
        slow = asyncio.create_task(here.ask("never"))
        await here.ask("a")
        there.close()
        with pytest.raises(ExecutorError, match="is cut"):
            await slow
        with pytest.raises(ExecutorError, match="is cut"):
            await here.ask("a")


@pytest.mark.parametrize("number", range(len(ERRORS)))
async def test_a_failure_is_raised_where_it_was_asked_for(number: int, tmp_path: Path) -> None:
    error, kind = ERRORS[number]
    async with line(tmp_path) as (here, _):
        with pytest.raises(kind) as caught:
            await here.ask("raise", number)
        assert str(error) in str(caught.value)


def test_exit_code_and_node_are_told_with_a_failure() -> None:
    full = raised(trouble_of(StoreError("full", ExitCode.SERVICE_GONE)))
    lost = raised(trouble_of(NodeLost("gone", "node/1")))
    assert isinstance(full, StoreError)
    assert full.exit_code is ExitCode.SERVICE_GONE
    assert isinstance(lost, NodeLost)
    assert lost.node == "node/1"
