"""Service processes: they announce themselves, are watched, and never outlive their parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from conf.errors import ExitCode
from runners.records.store.run_store import RunStore
from runners.system.processes.ledger import Ledger
from runners.system.processes.service import Service, ServiceError
from tests.fakes.small_disk import mount_small_disk

pytestmark = pytest.mark.integration

MODULE = "tests.fakes.echo_service"


async def start(tmp_path: Path, deadline_s: float = 300, **settings: object) -> Service:
    """Start the echo service."""
    return await Service.start(
        "echo", MODULE, settings, log=tmp_path / "echo.log", deadline_s=deadline_s
    )


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_service_receives_its_settings_and_announces_itself(tmp_path: Path) -> None:
    service = await start(tmp_path, colour="blue")
    assert service.info["settings"] == {"colour": "blue"}
    await service.stop()
    assert not is_running(service.pid)


async def test_a_file_in_the_current_directory_does_not_replace_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("print('not json')")
    monkeypatch.chdir(tmp_path)
    service = await start(tmp_path)
    await service.stop()
    assert not is_running(service.pid)


async def test_the_log_tail_has_the_last_exception_although_more_was_printed_after_it(
    tmp_path: Path,
) -> None:
    service = await start(tmp_path)
    lines = ["ValueError: an old one", "RuntimeError: no memory", "  at 1", *(["ended"] * 3)]
    service.log.write_text("\n".join(lines))
    assert service.log_tail() == "RuntimeError: no memory | ended | ended | ended"
    service.log.write_text("loading\nRuntimeError: no memory\nended")
    assert service.log_tail() == "loading | RuntimeError: no memory | ended"
    await service.stop()


async def test_the_log_tail_has_no_line_of_an_earlier_process(tmp_path: Path) -> None:
    first = await start(tmp_path)
    first.log.write_text("RuntimeError: of the first\n")
    await first.stop()
    second = await start(tmp_path)
    assert "of the first" in second.log.read_text()
    assert second.log_tail() == f"(nothing in {second.log})"
    await second.stop()


async def test_an_empty_log_on_a_full_disk_says_why(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk") as disk:
        service = await start(disk.place)
        disk.resize(200)
        assert service.log_tail() == f"(nothing in {service.log})"
        (disk.place / "ballast").write_bytes(bytes(180 << 10))
        assert service.log_tail() == f"(nothing in {service.log}: the disk is full)"
        await service.stop()


async def test_a_service_that_dies_at_start_raises_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"exit 4.*cannot bind: the reason") as caught:
        await start(tmp_path, die_before_ready=True)
    assert caught.value.exit_code is ExitCode.SERVICE_GONE


async def test_a_service_that_is_never_ready_is_stopped_at_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="not ready within 1 s"):
        await start(tmp_path, deadline_s=1, never_ready=True)
    await asyncio.sleep(0)
    assert not [
        child for child in psutil.Process().children() if MODULE in " ".join(child.cmdline())
    ]


async def test_the_watch_reports_an_unexpected_end_once_and_a_requested_one_never(
    tmp_path: Path,
) -> None:
    errors: list[ServiceError] = []
    dying = await start(tmp_path, die_after_s=0.05)
    dying.watch(errors.append)
    stopped = await start(tmp_path)
    stopped.watch(errors.append)
    await stopped.stop()
    while not errors:
        await asyncio.sleep(0.01)
    assert [str(error) for error in errors] == [
        "echo ended unexpectedly (exit 7): died of the test"
    ]


async def test_a_stop_that_is_cancelled_kills_and_leaves_nothing(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", {}) as store:
        ledger = Ledger(store)
        service = await Service.start(
            "echo", MODULE, {"deaf": True}, log=tmp_path / "log", deadline_s=300, ledger=ledger
        )
        [entry] = ledger.entries()
        stopping = asyncio.create_task(service.stop(grace_s=60))
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert not is_running(service.pid)
        assert ledger.entries() == []
        assert not Path(entry.facts["scratch"]).exists()


def test_a_service_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable, "-c",
            "import asyncio, pathlib, sys\n"
            "from runners.system.processes.service import Service\n"
            "async def main():\n"
            "    log = pathlib.Path(sys.argv[1])\n"
            f"    s = await Service.start('echo', '{MODULE}', {{}}, log=log, deadline_s=300)\n"
            "    print('{\"pid\": %d}' % s.pid, flush=True)\n"
            "    await asyncio.sleep(60)\n"
            "asyncio.run(main())\n",
            str(tmp_path / "echo.log"),
        ],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    pid = json.loads(parent.stdout.readline())["pid"]
    assert is_running(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    while is_running(pid):
        time.sleep(0.02)
