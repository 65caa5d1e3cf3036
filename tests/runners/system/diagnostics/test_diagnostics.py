"""A signal tells where a process hangs, and nothing else happens; what nobody awaited is kept."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path

import pytest

from runners.records.store.store_error import StoreError
from runners.system.diagnostics.diagnostics import install_diagnostics


async def inner(gate: asyncio.Event) -> None:
    await gate.wait()


async def outer(gate: asyncio.Event) -> None:
    await inner(gate)


async def test_sigusr1_writes_where_every_task_waits(tmp_path: Path) -> None:
    gate = asyncio.Event()
    before = signal.getsignal(signal.SIGUSR1)
    with install_diagnostics(tmp_path):
        task = asyncio.create_task(outer(gate), name="rollout-3")
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0)
        gate.set()
        await task
    assert signal.getsignal(signal.SIGUSR1) == before
    (path,) = (tmp_path / "diagnostics").glob("driver-tasks-*.txt")
    text = path.read_text()
    assert text.startswith(f"The tasks of driver (process {os.getpid()}) at ")
    rollout = text.partition("rollout-3 (pending)")[2].partition("\n\n")[0]
    places = [line.rpartition(" in ")[2] for line in rollout.splitlines() if ".py:" in line]
    assert places == ["outer", "inner", "Event.wait"]
    assert "await gate.wait()" in rollout


async def test_sigusr2_writes_every_thread(tmp_path: Path) -> None:
    with install_diagnostics(tmp_path, "gateway"):
        os.kill(os.getpid(), signal.SIGUSR2)
        await asyncio.sleep(0)
    said = (tmp_path / "diagnostics" / "gateway-threads.txt").read_text()
    assert "test_sigusr2_writes_every_thread" in said


async def test_a_signal_on_a_full_disk_disturbs_nothing(tmp_path: Path) -> None:
    with install_diagnostics(tmp_path):
        (tmp_path / "diagnostics").rename(tmp_path / "elsewhere")
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0)
    assert list((tmp_path / "elsewhere").glob("driver-tasks-*")) == []


async def test_a_run_directory_that_is_gone_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing"), install_diagnostics(tmp_path / "missing"):
        pass


class Hostile(Exception):
    def __str__(self) -> str:
        raise ValueError("{} %s [/] \udc80")

    __repr__ = __str__


async def test_an_error_that_nobody_awaited_is_kept_with_its_task_and_traceback(
    tmp_path: Path,
) -> None:
    reported: list[str] = []

    async def fail() -> None:
        raise Hostile

    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    with install_diagnostics(tmp_path, report=reported.append):
        task = asyncio.create_task(fail(), name="weights {0} %d")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task
        gc.collect()
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)
    assert loop.get_exception_handler() == before
    line, callback = reported
    assert "ZeroDivisionError: division by zero" in callback
    assert line.startswith("Task exception was never retrieved (task weights {0} %d): Hostile: ")
    text = (tmp_path / "diagnostics" / "driver-errors.txt").read_text()
    assert line in text
    assert " in fail\n" in text
