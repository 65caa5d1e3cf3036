"""A task's chain says what it waits for, through everything that asyncio puts in between."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from runners.system.diagnostics.call_graph import (
    PENDING_LENGTH,
    describe_pending,
    format_await_tree,
    safe_repr,
)

Body = Coroutine[Any, Any, None]


async def innermost(gate: asyncio.Event) -> None:
    await gate.wait()


async def nested(gate: asyncio.Event) -> None:
    await innermost(gate)


async def items(gate: asyncio.Event) -> AsyncIterator[int]:
    yield 1
    await innermost(gate)


async def iterating(gate: asyncio.Event) -> None:
    async for _ in items(gate):
        pass


@asynccontextmanager
async def opened(gate: asyncio.Event) -> AsyncIterator[None]:
    await innermost(gate)
    yield


async def entering(gate: asyncio.Event) -> None:
    async with opened(gate):
        pass


async def grouped(gate: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(innermost(gate), name="member")


async def gathering(gate: asyncio.Event) -> None:
    await asyncio.gather(innermost(gate), innermost(gate))


async def shielding(gate: asyncio.Event) -> None:
    await asyncio.shield(innermost(gate))


async def waiting(gate: asyncio.Event) -> None:
    await asyncio.wait([asyncio.create_task(innermost(gate))])


async def waiting_for(gate: asyncio.Event) -> None:
    await asyncio.wait_for(innermost(gate), 1000)


async def joining(gate: asyncio.Event) -> None:
    await asyncio.create_task(innermost(gate), name="joined")


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def seen(body: Body) -> str:
    """Return the chain of a task once it waits; the task is cancelled."""
    task = asyncio.create_task(body, name="asked")
    await settle()
    try:
        return describe_pending(task)
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize(
    "body",
    [
        *(nested, iterating, entering, grouped, gathering),
        *(shielding, waiting, waiting_for, joining),
    ],
)
async def test_the_chain_leads_to_the_innermost_wait(body: Any) -> None:
    gate = asyncio.Event()
    try:
        text = await seen(body(gate))
    finally:
        gate.set()
        await settle()
    assert text.startswith("asked (pending")
    assert f" in {body.__qualname__}" in text
    assert " in innermost\n" in text
    assert text.rstrip().splitlines()[-1].lstrip().startswith("waits for <asyncio.locks.Event")


async def test_a_lock_a_queue_and_a_timer_are_named() -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    assert "waits for <asyncio.locks.Lock" in await seen(_locking(lock))
    assert "waits for <Queue" in await seen(_getting(asyncio.Queue()))
    assert re.search(r"until a timer ends, in (999\.\d|1000\.0) s", await seen(_sleeping()))


async def _locking(lock: asyncio.Lock) -> None:
    async with lock:
        pass


async def _getting(queue: asyncio.Queue[int]) -> None:
    await queue.get()


async def _sleeping() -> None:
    await asyncio.sleep(1000)


async def test_each_timeout_around_a_task_is_shown_with_what_is_left_of_it() -> None:
    async def limited() -> None:
        async with asyncio.timeout(2000), asyncio.timeout(1000):
            await asyncio.Event().wait()

    head = (await seen(limited())).splitlines()[0]
    assert re.search(r"timeout in (1999\.\d|2000\.0) s", head)
    assert re.search(r"timeout in (999\.\d|1000\.0) s", head)


async def test_a_child_process_is_named_by_its_pid() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "1000")

    async def reaping() -> None:
        await process.wait()

    try:
        assert f"pid={process.pid}" in await seen(reaping())
    finally:
        process.kill()
        await process.wait()


async def test_a_call_in_another_thread_is_shown_with_its_stack() -> None:
    go = threading.Event()

    def busy_in_a_thread() -> None:
        go.wait()

    try:
        text = await seen(asyncio.to_thread(busy_in_a_thread))
    finally:
        go.set()
    assert "in test_a_call_in_another_thread_is_shown_with_its_stack.<locals>.busy" in text
    assert "go.wait()" in text


async def test_the_tree_shows_who_waits_for_whom_and_a_shared_task_once() -> None:
    gate = asyncio.Event()
    shared = asyncio.create_task(innermost(gate), name="shared")
    first, second = (asyncio.create_task(_join(shared), name=name) for name in ("one", "two"))
    await settle()
    text = format_await_tree([shared, first, second], asyncio.get_running_loop())
    gate.set()
    await asyncio.gather(first, second)
    heads = [line for line in text.splitlines() if line and not line.startswith("  ")]
    assert sorted(heads) == ["one (pending)", "two (pending)"]
    assert text.count("  └ shared (pending)") == 2
    assert text.count("in innermost") == 1
    assert text.count("see above") == 1


async def _join(task: asyncio.Task[None]) -> None:
    await task


async def test_tasks_that_wait_for_each_other_are_called_a_circle() -> None:
    tasks: dict[str, asyncio.Task[None]] = {}

    async def join(name: str) -> None:
        await asyncio.wait([tasks[name]])

    tasks |= {"a": asyncio.create_task(join("b"), name="a")}
    tasks |= {"b": asyncio.create_task(join("a"), name="b")}
    await settle()
    text = format_await_tree(tasks.values(), asyncio.get_running_loop())
    for task in tasks.values():
        task.cancel()
    await asyncio.wait(tasks.values())
    assert text.count("a circle, it waits for itself") == 1


async def test_running_new_and_resumable_tasks_are_distinguished() -> None:
    assert describe_pending().endswith("runs now")
    gate = asyncio.Event()
    task = asyncio.create_task(innermost(gate))
    assert describe_pending(task).endswith("has not begun")
    await settle()
    gate.set()
    assert describe_pending(task).endswith("about to go on: what it waited for is there")
    task.cancel()
    assert "being cancelled" in describe_pending(task)


async def test_a_long_chain_keeps_its_beginning_and_its_end() -> None:
    gate = asyncio.Event()

    async def deep(left: int) -> None:
        await (deep(left - 1) if left else innermost(gate))

    text = await seen(deep(40))
    assert len(text) <= PENDING_LENGTH
    assert text.startswith("asked (pending)")
    assert "[…]" in text
    assert "in innermost" in text


class Hostile(asyncio.Future[None]):
    def __repr__(self) -> str:
        raise RuntimeError("{} %s [/]")


async def test_a_future_whose_repr_raises_is_described_all_the_same() -> None:
    async def body() -> None:
        await Hostile()

    assert "waits for <Hostile whose repr fails: {} %s [/]>" in await seen(body())


def test_a_repr_is_one_short_line_of_valid_text() -> None:
    class Long:
        def __repr__(self) -> str:
            return "a\nb\udc80" + "c" * 1000

    text = safe_repr(Long())
    assert text.startswith("a b\\udc80")
    assert len(text) == 200


async def test_the_tree_can_be_read_from_another_thread_while_the_loop_runs() -> None:
    loop, stop = asyncio.get_running_loop(), threading.Event()
    texts: list[str] = []

    def read() -> None:
        while not stop.is_set():
            texts.append(format_await_tree(asyncio.all_tasks(loop), loop))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        await asyncio.gather(*(asyncio.sleep(0.001) for _ in range(20)))
    stop.set()
    reader.join()
    assert texts


def test_the_chain_is_the_same_on_a_loop_that_shows_no_timers() -> None:
    async def look() -> None:
        gate = asyncio.Event()
        text = await seen(grouped(gate))
        assert "└ member (pending)" in text
        assert "waits for <asyncio.locks.Event" in text

    uvloop.run(look())
