"""A call of a plug-in ends in its result or in one failure, whatever the plug-in does."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from typing import Any

import pytest

from runners.system.plugins.calls import PluginFailedError, call_plugin, check_number


async def later(value: int) -> int:
    await asyncio.sleep(0)
    return value


def now(value: int) -> int:
    return value


class Held:
    async def __call__(self, value: int) -> int:
        return value


@pytest.mark.parametrize("plugin", [later, now, Held()])
async def test_a_plugin_may_be_async_or_not(plugin: Any) -> None:
    assert await call_plugin("reward", plugin, 3, deadline_s=5) == 3


def raises(_: int) -> int:
    raise ValueError("no\x1b[2J score")


def stops(_: int) -> int:
    raise StopIteration


def exits(_: int) -> int:
    raise SystemExit(3)


async def exits_later(_: int) -> int:
    raise SystemExit(3)


async def times_out(_: int) -> int:
    raise TimeoutError("its own")


@pytest.mark.parametrize(
    ("plugin", "text"),
    [
        (raises, "reward raised ValueError: no"),
        (stops, "reward raised RuntimeError: StopIteration"),
        (exits, "reward raised RuntimeError: SystemExit(3)"),
        (exits_later, "reward raised SystemExit: 3"),
        (times_out, "reward raised TimeoutError: its own"),
    ],
)
async def test_whatever_it_raises_is_its_failure(plugin: Any, text: str) -> None:
    with pytest.raises(PluginFailedError) as caught:
        await call_plugin("reward", plugin, 1, deadline_s=5)
    assert str(caught.value).startswith(text)
    assert "\x1b" not in str(caught.value)
    assert "test_calls.py:" in str(caught.value)


async def test_one_that_hangs_holds_neither_the_loop_nor_another_call() -> None:
    released = threading.Event()

    def hangs(_: int) -> int:
        released.wait(30)
        return 0

    started = time.monotonic()
    calls = [call_plugin("reward", hangs, 1, deadline_s=0.05) for _ in range(40)]
    found = await asyncio.gather(
        *calls, call_plugin("reward", now, 7, deadline_s=5), return_exceptions=True
    )
    assert found.pop() == 7
    assert {str(error) for error in found} == {"reward took longer than 0.05 s"}
    assert time.monotonic() - started < 10
    released.set()


async def test_an_async_one_that_blocks_stops_neither_our_loop_nor_one_in_a_thread() -> None:
    released = threading.Event()

    async def blocks(_: int) -> int:
        return int(released.wait(30))

    plugin: Any = blocks
    started = time.monotonic()
    blocked = asyncio.create_task(call_plugin("reward", plugin, 1, deadline_s=0.1))
    await asyncio.sleep(0.01)
    assert await call_plugin("reward", now, 7, deadline_s=5) == 7
    with pytest.raises(PluginFailedError, match="took longer than"):
        await blocked
    assert time.monotonic() - started < 10
    released.set()
    plugin = later
    assert await call_plugin("reward", plugin, 3, deadline_s=20) == 3


async def cancels_itself(_: int) -> int:
    raise asyncio.CancelledError


async def test_one_that_cancels_itself_is_a_failure_with_its_name() -> None:
    plugin: Any = cancels_itself
    with pytest.raises(PluginFailedError, match=r"reward raised RuntimeError: CancelledError\(\)"):
        await call_plugin("reward", plugin, 1, deadline_s=5)


@pytest.mark.parametrize("value", [1, 0.5, True, -3])
def test_a_finite_number_is_taken(value: float) -> None:
    assert check_number("reward", value) == float(value)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), None, "1.0", 10**400, [1.0], {"reward": 1}]
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(PluginFailedError, match="no finite number"):
        check_number("reward", value)


async def test_a_program_that_fails_in_a_plug_in_shows_what_it_printed() -> None:
    def call() -> None:
        argv = ["sh", "-c", f"echo no such image >&2; exit 125 # {'long' * 1000}"]
        subprocess.run(argv, check=True, capture_output=True)

    with pytest.raises(PluginFailedError, match="It printed: no such image") as caught:
        await call_plugin("sandbox", call, deadline_s=5)
    assert len(str(caught.value)) < 900
