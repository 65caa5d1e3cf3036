"""The real ``smg`` (SGLang's router and parsers), where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runners.system.processes.ports import free_port

READY_S = 300.0


@contextmanager
def running_smg(*arguments: str) -> Iterator[str]:
    """Yield the address of an smg that is ready; skips the test if it is not installed."""
    beside = Path(sys.executable).with_name("smg")
    program = str(beside) if beside.exists() else shutil.which("smg")
    if program is None:
        pytest.skip("smg is not installed (pip install 'agentrl-campaigns[smg]')")
    port, metrics = free_port("127.0.0.1"), free_port("127.0.0.1")
    process = subprocess.Popen(
        [program, "launch", "--host", "127.0.0.1", "--port", str(port),
         "--prometheus-port", str(metrics), *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        _await_health(url)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _await_health(url: str) -> None:
    ends = time.monotonic() + READY_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=10).close()
        except OSError:
            if time.monotonic() >= ends:
                raise
            time.sleep(0.1)
        else:
            return
