"""The engine's process: start, end, and one-line reasons for not starting."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ExitCode
from runners.engines.client import HttpEngine
from runners.engines.contract import SamplingParams

pytestmark = pytest.mark.integration

READY_S = 60.0


async def start(settings: Any) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runners.engines.embedded",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONWARNINGS": "default"},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(settings).encode() + b"\n")
    return process


async def ready(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), READY_S)
    url = json.loads(line)["url"]
    assert isinstance(url, str)
    return url


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """Exit code and stderr, stdin left open."""
    assert process.stderr is not None
    stderr = await asyncio.wait_for(process.stderr.read(), READY_S)
    return await process.wait(), stderr.decode()


async def test_the_process_serves_until_sigterm(model_dir: Path) -> None:
    process = await start({"model_path": str(model_dir), "weight_version": 3})
    url = await ready(process)
    engine = HttpEngine(url)
    answer = await engine.generate([1, 2, 3], SamplingParams(4), rid="a")
    assert (len(answer.output_ids), answer.weight_version) == (4, 3)
    await engine.close()
    process.send_signal(signal.SIGTERM)
    assert await ended(process) == (0, "")


async def test_the_process_ends_with_its_parent_even_during_a_request(
    model_dir: Path,
) -> None:
    process = await start({"model_path": str(model_dir)})
    engine = HttpEngine(await ready(process))
    call = asyncio.create_task(engine.generate([1, 2, 3], SamplingParams(2000), rid="a"))
    await asyncio.sleep(0.05)
    assert process.stdin is not None
    process.stdin.close()
    assert (await ended(process))[0] == 0
    await asyncio.wait([call])
    await engine.close()


async def test_a_port_in_use_is_exit_code_4_and_one_line(model_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = {"model_path": str(model_dir), "port": port, "port_patience_s": 0.05}
        code, stderr = await ended(await start(settings))
    assert code == ExitCode.SERVICE_GONE
    assert stderr.splitlines() == [
        f"engine: 127.0.0.1:{port} is already in use; choose another port or 0 for any free one"
    ]


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({"model_path": "/nonexistent"}, ExitCode.SERVICE_GONE, "/nonexistent"),
        (
            {"model_path": "x", "prot": 1, "threads": 0},
            ExitCode.USAGE,
            "prot: unknown key; threads",
        ),
    ],
)
async def test_a_process_that_cannot_start_prints_one_line(
    settings: dict[str, Any], code: int, named: str
) -> None:
    found, stderr = await ended(await start(settings))
    assert found == code
    assert len(stderr.splitlines()) == 1
    for part in named.split("; "):
        assert part in stderr
