"""Diagnostics of a run's services: their call graphs on request, and their watchdogs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from runners.records.store.run_store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from runners.system.processes.service import Service
from tests.fakes.running_gateway import settings_for
from tests.fakes.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration


async def engine(run_dir: Path) -> Service:
    model = write_tiny_model(run_dir / "model")
    settings = {"model_path": str(model), "run_dir": str(run_dir), "watchdog_s": 60, "threads": 1}
    return await Service.start(
        "engine", "runners.engines.embedded", settings, log=run_dir / "log", deadline_s=60
    )


async def gateway(run_dir: Path) -> Service:
    tokenizer = write_tiny_tokenizer(run_dir / "tokenizer")
    settings = settings_for("http://127.0.0.1:9", tokenizer, run_dir, watchdog_s=60)
    return await Service.start(
        "gateway",
        "runners.gateway",
        settings.model_dump(mode="json"),
        log=run_dir / "log",
        deadline_s=60,
    )


async def answer(service: Service, number: int, folder: Path, pattern: str, last: str) -> str:
    """Send a signal until a file has text down to ``last``; return it.

    Again and again, as a service that has just announced itself may not have all its tasks yet.
    """
    while True:
        os.kill(service.pid, number)
        for _ in range(50):
            await asyncio.sleep(0.02)
            for path in folder.glob(pattern):
                if last in (text := path.read_text()):
                    return text


@pytest.mark.parametrize("start", [engine, gateway])
async def test_it_answers_both_signals_and_has_a_watchdog(
    start: Callable[[Path], Coroutine[Any, Any, Service]], tmp_path: Path
) -> None:
    RunStore.create(tmp_path, {}).close()
    service = await start(tmp_path)
    folder, name = tmp_path / "diagnostics", service.name
    try:
        tasks = await answer(
            service, signal.SIGUSR1, folder, f"{name}-tasks-*.txt", " in wait_for_parent_exit\n"
        )
        assert f"The tasks of {name} (process {service.pid})" in tasks
        threads = "runners/system/diagnostics/watchdog.py"
        await answer(service, signal.SIGUSR2, folder, f"{name}-threads.txt", threads)
    finally:
        await service.stop()
    assert "Traceback" not in service.log.read_text()
