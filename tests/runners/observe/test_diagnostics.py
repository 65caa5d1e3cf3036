"""A signal tells where a process hangs, and nothing else happens."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from runners.observe.diagnostics import diagnostics


async def inner(gate: asyncio.Event) -> None:
    await gate.wait()


async def outer(gate: asyncio.Event) -> None:
    await inner(gate)


async def items(gate: asyncio.Event) -> AsyncIterator[int]:
    yield 1
    await inner(gate)


async def consume(gate: asyncio.Event) -> None:
    async for _ in items(gate):
        pass


async def test_sigusr1_writes_where_every_task_waits(tmp_path: Path) -> None:
    gate = asyncio.Event()
    before = signal.getsignal(signal.SIGUSR1)
    with diagnostics(tmp_path):
        tasks = [
            asyncio.create_task(outer(gate), name="rollout-3"),
            asyncio.create_task(consume(gate), name="reader"),
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)
    assert signal.getsignal(signal.SIGUSR1) == before
    (path,) = (tmp_path / "diagnostics").glob("driver-tasks-*.txt")
    rollout = path.read_text().partition("rollout-3 (pending)")[2].partition("\n\n")[0]
    places = [line.rpartition(" in ")[2] for line in rollout.splitlines() if ".py:" in line]
    assert places[:2] == ["outer", "inner"]
    assert "await gate.wait()" in rollout
    reader = path.read_text().partition("reader (pending)")[2].partition("\n\n")[0]
    assert "in consume" in reader


async def test_sigusr2_writes_every_thread(tmp_path: Path) -> None:
    with diagnostics(tmp_path, "gateway"):
        os.kill(os.getpid(), signal.SIGUSR2)
        await asyncio.sleep(0)
    said = (tmp_path / "diagnostics" / "gateway-threads.txt").read_text()
    assert "test_sigusr2_writes_every_thread" in said
