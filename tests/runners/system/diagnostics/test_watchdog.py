"""A loop that stands still is described while it does; time in which nothing ran is no stall."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from runners.system.diagnostics.watchdog import AwakeClock, Watchdog

STALL_S = 0.2


async def block_the_loop() -> None:
    time.sleep(4 * STALL_S)


async def waits_elsewhere() -> None:
    await asyncio.Event().wait()


async def test_a_blocked_loop_is_described_once_while_it_hangs(tmp_path: Path) -> None:
    reported: list[str] = []
    bystander = asyncio.create_task(waits_elsewhere(), name="bystander")
    await asyncio.sleep(0)
    with Watchdog(tmp_path, "driver", STALL_S, report=reported.append, more=lambda: "more to know"):
        await block_the_loop()
        await asyncio.sleep(2 * STALL_S)
    bystander.cancel()
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r"driver-stall-\d{8}-\d{6}-\d+\.txt", path.name)
    text = path.read_text()
    assert text.startswith("It is over: ")
    head = rf"The event loop of driver \(process {os.getpid()}\) has not run for \d+\.\d s, since "
    assert re.search(head, text)
    find_blocking_frame = text.partition("== what holds it up ==\n")[2].splitlines()
    assert find_blocking_frame[0].endswith(" in block_the_loop")
    assert find_blocking_frame[1].strip().startswith("time.sleep(")
    assert "more to know" in text
    threads = text.partition("== threads, the loop's first ==\n")[2]
    assert threads.startswith("MainThread\n")
    assert "\nwatchdog\n" in threads
    tasks = text.partition("== tasks, and what each waits for ==\n")[2]
    assert "bystander (pending)" in tasks
    assert " in waits_elsewhere" in tasks
    assert f"process {os.getpid()}, up " in text
    assert "disk free" in text
    assert len(reported) == 2
    assert str(path) in reported[0]
    assert "runs again" in reported[1]


async def test_a_loop_that_beats_is_left_alone(tmp_path: Path) -> None:
    reported: list[str] = []
    with Watchdog(tmp_path, "driver", 3 * STALL_S, report=reported.append):
        for _ in range(20):
            await asyncio.sleep(STALL_S / 5)
    assert reported == []
    assert list(tmp_path.iterdir()) == []


async def test_a_disk_that_refuses_the_file_does_not_end_the_watch(tmp_path: Path) -> None:
    reported: list[str] = []
    with Watchdog(tmp_path / "missing", "driver", STALL_S, report=reported.append):
        await block_the_loop()
        await asyncio.sleep(STALL_S)
    assert ["disk refuses" in reported[0], "runs again" in reported[1]] == [True, True]


def test_a_gap_in_which_the_owner_did_not_run_counts_as_two_ticks_at_most() -> None:
    awake = AwakeClock(0.01)
    time.sleep(0.1)
    assert awake.tick() == 0.02


PROGRAM = """
import asyncio, sys
from pathlib import Path
from runners.system.diagnostics.watchdog import Watchdog

async def main():
    with Watchdog(Path(sys.argv[1]), "engine", float(sys.argv[2]), report=print):
        print("ready", flush=True)
        {body}

asyncio.run(main())
"""


def start(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body), str(tmp_path), str(STALL_S)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_process_that_was_suspended_has_not_stalled(tmp_path: Path) -> None:
    process = start(tmp_path, "await asyncio.to_thread(sys.stdin.readline)")
    time.sleep(2 * STALL_S)
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(4 * STALL_S)
    os.kill(process.pid, signal.SIGCONT)
    time.sleep(2 * STALL_S)
    said, _ = process.communicate("\n")
    assert process.returncode == 0
    assert said == ""
    assert list(tmp_path.iterdir()) == []


def test_c_code_that_keeps_the_interpreter_for_itself_is_described_too(tmp_path: Path) -> None:
    # A regular expression that goes wrong holds the interpreter's lock all the time.
    process = start(tmp_path, "import re; re.match('(a|a)*$', 'a' * 24 + 'b')")
    said, _ = process.communicate()
    assert process.returncode == 0
    assert "the interpreter was held for " in said
    text = (tmp_path / "engine-frozen.txt").read_text()
    assert re.search(r'File "<string>", line \d+ in main', text)
    assert "The stacks above are those of " in text
