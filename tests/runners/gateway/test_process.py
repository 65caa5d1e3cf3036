"""The gateway as the process that a run starts."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.gateway.client import GatewayAdmin
from runners.service import Service, ServiceError
from runners.trajectory.store import RunStore
from tests.runners.gateway.running import settings_for


@pytest.fixture
def settings(tokenizer_dir: Path, tmp_path: Path) -> dict[str, Any]:
    run_dir = tmp_path / "run"
    RunStore.create(run_dir, {}).close()
    return settings_for("http://127.0.0.1:9", tokenizer_dir, run_dir)


async def start(settings: dict[str, Any], tmp_path: Path) -> Service:
    log = tmp_path / "gateway.log"
    return await Service.start("gateway", "runners.gateway", settings, log=log, deadline_s=60)


async def test_it_serves_until_it_is_stopped(settings: dict[str, Any], tmp_path: Path) -> None:
    gateway = await start(settings, tmp_path)
    assert gateway.info["pid"] == gateway.pid
    admin = GatewayAdmin(gateway.info["url"], gateway.info["admin_key"])
    await admin.create_session("s1")
    await gateway.stop()
    assert not await admin.healthy()
    await admin.close()
    assert not Path(gateway.info["control"]).parent.exists()
    log = (tmp_path / "gateway.log").read_text()
    assert gateway.info["admin_key"] not in log
    assert "Traceback" not in log


async def test_a_gateway_whose_parent_died_ends_at_once(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    driver = f"""
import asyncio, json, os, sys
from pathlib import Path
from runners.service import Service
async def main():
    service = await Service.start("gateway", "runners.gateway", json.loads(sys.argv[1]),
                                  log=Path({str(tmp_path / "gateway.log")!r}), deadline_s=60)
    print(service.pid, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    argv = [sys.executable, "-c", driver, json.dumps(settings)]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, timeout=60)
    try:
        orphan = psutil.Process(int(done.stdout))
        await asyncio.to_thread(orphan.wait, 20)
    except psutil.NoSuchProcess:
        pass  # it was faster than we


async def test_a_port_in_use_is_said_with_its_mend(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"exit 4.*gateway\.port={port} .* is in use: ch"):
            await start({**settings, "port": port}, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"renderer": "qwen"}, r"exit 2.*model\.renderer='qwen' is unknown"),
        ({"tokenizer": "/nowhere"}, r"exit 2.*model\.tokenizer"),
        ({"run_dir": "/nowhere"}, r"exit 5.*holds no run"),
        ({"host": "192.0.2.1"}, r"exit 4.*gateway\.host=192\.0\.2\.1"),
    ],
)
async def test_what_cannot_be_served_is_said_in_one_line(
    changes: dict[str, Any], said: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ServiceError, match=said):
        await start({**settings, **changes}, tmp_path)
    assert "Traceback" not in (tmp_path / "gateway.log").read_text()


async def test_a_second_gateway_of_the_same_run_is_refused(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    first = await start(settings, tmp_path)
    try:
        with RunStore.open(Path(settings["run_dir"])) as store:
            with pytest.raises(Exception, match="written by another process"):
                store.claim_arrays()
    finally:
        await first.stop()
