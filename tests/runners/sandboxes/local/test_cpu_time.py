"""The CPU time of a command is that of everything it started, whatever ended it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from runners.sandboxes.contract import StarvedError
from runners.sandboxes.local.sandbox import LocalSandbox
from runners.sandboxes.wrappers import FairSandbox
from runners.system.processes.cpu_time import add_cpu_time, measure_cpu_time, read_cpu_time
from tests.runners.sandboxes.conftest import Opener

pytestmark = pytest.mark.integration

BURN = "import time\nwhile time.process_time() < 0.4: pass\nopen('done', 'w')\n"
BURNT = 0.37
"""Least of it that is counted: of each process the kernel shows whole hundredths of a second."""
WAIT = "until [ -e done ]; do sleep 0.05; done"
LEAVES = f"setsid python3 -c '{BURN.replace(chr(39), chr(34))}time.sleep(600)' & {WAIT}"


async def run_measured(sandbox: LocalSandbox, program: str) -> float:
    """Return the CPU seconds of a program."""
    with measure_cpu_time() as meter:
        result = await sandbox.run(["bash", "-c", program], deadline_s=300)
    assert result.exit_code == 0, result.stderr
    assert meter.seconds is not None
    return meter.seconds


async def test_processes_in_the_background_count(opened: Opener) -> None:
    async with opened() as sandbox:
        idle = await run_measured(sandbox, "true")
        used = await run_measured(sandbox, LEAVES)
    assert 0.0 <= idle < BURNT <= used


async def test_a_command_that_is_killed_counts(opened: Opener) -> None:
    async with opened() as sandbox:
        with measure_cpu_time() as meter:
            running = asyncio.create_task(
                sandbox.run(["bash", "-c", f"{LEAVES}; sleep 600"], deadline_s=600)
            )
            while not (sandbox.workspace / "done").exists():
                assert not running.done(), running.result()
                await asyncio.sleep(0.05)
            running.cancel()
            await asyncio.wait([running])
        await sandbox.close()
    assert meter.seconds is not None
    assert meter.seconds >= BURNT


async def test_a_late_command_that_had_no_processor_is_told(opened: Opener) -> None:
    whole = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(whole)})  # what is started from here on shares one processor
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(8)]
    try:
        async with opened() as sandbox:
            loop = await sandbox.run(["sh", "-c", "while :; do :; done"], deadline_s=2)
            with pytest.raises(StarvedError, match="the machine is overloaded"):
                await FairSandbox(sandbox).run(["sh", "-c", "while :; do :; done"], deadline_s=2)
    finally:
        os.sched_setaffinity(0, whole)
        for each in busy:
            each.kill()
            each.wait()
    assert (loop.timed_out, loop.starved) == (True, True), loop


def test_a_meter_counts_only_while_it_is_entered() -> None:
    add_cpu_time(1.0)
    with measure_cpu_time() as outer:
        add_cpu_time(2.0)
        with measure_cpu_time() as inner:
            add_cpu_time(None)
        add_cpu_time(0.5)
    assert (outer.seconds, inner.seconds) == (2.5, None)
    assert read_cpu_time(2**22 + 1) is None
    assert not Path("/proc/4194305").exists()
