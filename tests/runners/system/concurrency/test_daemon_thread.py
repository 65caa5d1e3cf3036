"""Calls that may hang for good hold neither their caller nor the end of the process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from runners.system.concurrency.daemon_thread import is_one_left, run_in_daemon

END = """
import asyncio, torch
from cli.main import _leave_threads
from runners.system.concurrency.daemon_thread import run_in_daemon

def busy():
    while True:
        torch.randn(400, 400) @ torch.randn(400, 400)

async def begin():
    task = asyncio.ensure_future(run_in_daemon(busy))
    await asyncio.sleep(0.1)
    task.cancel()

asyncio.run(begin())
print("kept", flush=False)
_leave_threads(SystemExit(130))
"""


async def test_a_cancelled_caller_leaves_the_call_to_itself() -> None:
    begun, released = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        released.wait(60)

    caller = asyncio.ensure_future(run_in_daemon(hang))
    await asyncio.to_thread(begun.wait, 30)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert is_one_left()
    released.set()
    while is_one_left():
        await asyncio.sleep(0.001)


@pytest.mark.integration
def test_a_thread_in_torch_does_not_turn_the_end_of_the_process_into_an_abort() -> None:
    usual = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", END], capture_output=True, env=usual, timeout=120)
    assert (done.returncode, done.stdout) == (130, b"kept\n"), done.stderr
