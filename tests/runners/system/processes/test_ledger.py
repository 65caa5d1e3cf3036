"""The ledger: resources that a dead driver left are known, ended and removed from it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.observe.live.status import read_status
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.records.store.tables import TABLES
from runners.sandboxes.contract import SandboxError
from runners.system.processes.ledger import Ledger, reap
from runners.system.processes.process_tags import SERVICE_TAG
from runners.system.processes.service import Service, ServiceError
from tests.fakes.records import CONFIG

ECHO = "tests.fakes.echo_service"
DRIVER = f"""
import asyncio, sys, time
from pathlib import Path
from runners.system.processes.ledger import Ledger
from runners.system.processes.service import Service
from runners.records.store.run_store import RunStore

async def main():
    run_dir = Path(sys.argv[1])
    store = RunStore.open(run_dir)
    store.set_state("running")
    ledger = Ledger(store)
    ledger.register("sandbox", "s1", source="x")
    ledger.register("session", "s1")
    settings = {{"deaf": True}}
    log = run_dir / "echo.log"
    service = await Service.start("echo", "{ECHO}", settings, log=log, deadline_s=20, ledger=ledger)
    print(service.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "run", CONFIG)


def kill_a_driver(run_dir: Path) -> int:
    """Kill a driver that has a sandbox, a session and a service; return the service's pid.

    The service ignores its parent-death pipe.
    """
    arguments = [sys.executable, "-c", DRIVER, str(run_dir)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        driver.send_signal(signal.SIGKILL)
    return pid


def names(ledger: Ledger) -> list[tuple[str, str]]:
    return [(entry.kind, entry.name) for entry in ledger.entries()]


class Backend:
    """Records the sandboxes that it is to end, or refuses."""

    def __init__(self, refusal: str | None = None) -> None:
        self.reaped: dict[str, Mapping[str, Any]] = {}
        self._refusal = refusal

    async def reap(self, leaked: Mapping[str, Mapping[str, Any]]) -> None:
        """See ``SandboxReaper``."""
        self.reaped |= leaked
        if self._refusal is not None:
            raise SandboxError(self._refusal)


def test_an_entry_is_known_from_before_it_exists_until_it_is_gone(store: RunStore) -> None:
    ledger = Ledger(store)
    ledger.register("sandbox", "one", template="t")
    ledger.register("session", "one")
    ledger.add_facts("sandbox", "one", sandbox_id="i-1", template="u")
    with RunStore.open(store.run_dir, read_only=True) as reader:
        sandbox, session = Ledger(reader).entries()
    assert sandbox.facts == {"template": "u", "sandbox_id": "i-1"}
    assert (session.kind, session.facts) == ("session", {})
    assert sandbox.driver.alive(None)
    ledger.unregister("sandbox", "one")
    ledger.unregister("sandbox", "one")
    assert names(ledger) == [("session", "one")]


def test_an_entry_of_a_living_driver_is_no_leak_until_it_is_too_old(store: RunStore) -> None:
    ledger = Ledger(store)
    for kind in ("process", "session", "sandbox"):
        ledger.register(kind, kind)
    assert ledger.find_leaks() == ledger.find_leaks(60.0) == []
    assert {entry.kind for entry in ledger.find_leaks(-1.0)} == {"session", "sandbox"}


def test_all_of_a_kind_are_unregistered_together_but_only_this_process_s(store: RunStore) -> None:
    ledger = Ledger(store)
    ledger.register("session", "s1")
    ledger.register("session", "s2")
    ledger.register("sandbox", "s1")
    store.database.execute("UPDATE ledger SET pid = pid + 1 WHERE name = 's2'")
    ledger.unregister_all("session")
    assert {(entry.kind, entry.name) for entry in ledger.entries()} == {
        ("sandbox", "s1"),
        ("session", "s2"),
    }


@pytest.mark.integration
async def test_what_a_killed_driver_left_is_shown_ended_and_unregistered(store: RunStore) -> None:
    pid = kill_a_driver(store.run_dir)
    service = psutil.Process(pid)
    ledger, backend = Ledger(store), Backend()
    ledger.register("session", "mine")
    status = read_status(store.run_dir)
    assert sorted(leak.kind for leak in status.leaks) == ["process", "sandbox", "session"]
    assert status.to_dict()["leaks"][0]["age_s"] >= 0
    (process,) = (entry for entry in ledger.entries() if entry.kind == "process")
    assert process.facts["pid"] == pid
    assert Path(process.facts["scratch"]).is_dir()

    assert {r.entry.kind for r in await reap(ledger)} == {"process", "session"}
    assert not service.is_running() or service.status() == psutil.STATUS_ZOMBIE
    assert not Path(process.facts["scratch"]).exists()
    assert names(ledger) == [("sandbox", "s1"), ("session", "mine")]

    assert [r.entry.name for r in await reap(ledger, backend)] == ["s1"]
    assert backend.reaped == {"s1": {"source": "x"}}
    assert names(ledger) == [("session", "mine")]
    assert await reap(ledger, backend) == []
    ended = [event.data["ended"] for event in store.events("reaped")]
    assert ended == [["s1", process.name], ["s1"]] or ended == [[process.name, "s1"], ["s1"]]


async def test_a_service_whose_pid_was_never_recorded_is_found_by_its_tag(
    store: RunStore, tmp_path: Path
) -> None:
    ledger = Ledger(store)
    ledger.register("process", "echo-1", scratch=str(tmp_path / "agentrl-echo-1"))
    assign_to_a_dead_driver(store)
    bystander = subprocess.Popen(["sleep", "100"], env={SERVICE_TAG: "echo-10"})
    child = subprocess.Popen(["sleep", "100"], env={SERVICE_TAG: "echo-1"})
    await reap(ledger)
    assert child.wait() == -signal.SIGKILL
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert ledger.entries() == []


def assign_to_a_dead_driver(store: RunStore, **changes: Any) -> None:
    """Rewrite every entry as one of a process that is gone."""
    values = {"host": socket.gethostname(), "pid": os.getpid(), "pid_started_at": 1.0} | changes
    with sqlite3.connect(store.run_dir / "store.sqlite") as db:
        for column, value in values.items():
            db.execute(f"UPDATE ledger SET {column} = ?", (value,))
    db.close()


async def test_a_pid_that_another_process_has_now_is_not_killed(store: RunStore) -> None:
    ledger = Ledger(store)
    with subprocess.Popen(["sleep", "100"]) as stranger:
        ledger.register("process", "engine-1", pid=stranger.pid)
        assign_to_a_dead_driver(store)
        await reap(ledger)
        assert stranger.poll() is None
        stranger.kill()
    assert ledger.entries() == []


async def test_a_directory_that_is_not_the_service_s_own_is_not_removed(
    store: RunStore, tmp_path: Path
) -> None:
    ledger = Ledger(store)
    for facts in ({}, {"scratch": str(tmp_path)}, {"scratch": ""}):
        ledger.register("process", "engine-1", **facts)
        assign_to_a_dead_driver(store)
        await reap(ledger)
    assert tmp_path.is_dir()


async def test_a_resource_that_cannot_be_ended_stays_registered_with_the_reason(
    store: RunStore,
) -> None:
    ledger, backend = Ledger(store), Backend("the provider does not answer")
    ledger.register("sandbox", "far")
    ledger.register("process", "engine-1")
    assign_to_a_dead_driver(store, host="elsewhere")
    store.set_state(State.RUNNING)  # its heartbeat is ours, not the dead driver's
    errors = {reaped.entry.kind: reaped.error for reaped in await reap(ledger, backend)}
    assert errors["sandbox"] == "the provider does not answer"
    assert "it ran on elsewhere" in str(errors["process"])
    assert {kind for kind, _ in names(ledger)} == {"sandbox", "process"}
    (event,) = store.events("reaped")
    assert event.data["failed"].keys() == {"far", "engine-1"}


@pytest.mark.integration
async def test_a_service_is_in_the_ledger_exactly_while_it_lives(
    store: RunStore, tmp_path: Path
) -> None:
    ledger, log = Ledger(store), tmp_path / "echo.log"
    service = await Service.start("echo", ECHO, {}, log=log, deadline_s=20, ledger=ledger)
    (entry,) = ledger.entries()
    assert entry.facts["pid"] == service.pid
    scratch = Path(entry.facts["scratch"])
    environment = psutil.Process(service.pid).environ()
    assert environment["TMPDIR"] == str(scratch)
    assert scratch.stat().st_mode & 0o777 == 0o700
    (scratch / "left").touch()
    await service.stop()
    assert ledger.entries() == []
    assert not scratch.exists()


@pytest.mark.parametrize("failure", ["die_before_ready", "cancelled", "no_log"])
@pytest.mark.integration
async def test_a_service_that_did_not_start_is_not_in_the_ledger(
    store: RunStore, tmp_path: Path, failure: str
) -> None:
    ledger, log = Ledger(store), tmp_path / "echo.log"
    if failure == "no_log":
        log.mkdir()
    settings = {"unready" if failure == "cancelled" else failure: True}
    start = asyncio.ensure_future(
        Service.start("echo", ECHO, settings, log=log, deadline_s=20, ledger=ledger)
    )
    if failure == "cancelled":
        while not any("pid" in entry.facts for entry in ledger.entries()):
            await asyncio.sleep(0.01)
        start.cancel()
    with pytest.raises(asyncio.CancelledError if failure == "cancelled" else ServiceError):
        await start
    assert ledger.entries() == []


def make_older_store(run_dir: Path) -> None:
    """Make a store of the version before the ledger was added."""
    RunStore.create(run_dir, CONFIG).close()
    with sqlite3.connect(run_dir / "store.sqlite") as db:
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            if f"CREATE TABLE {name} " not in TABLES:
                db.execute(f"DROP TABLE {name}")
        db.execute("PRAGMA user_version = 1")
    db.close()


def test_an_older_store_is_read_unchanged_and_migrated_when_opened_for_writing(
    tmp_path: Path,
) -> None:
    make_older_store(tmp_path)
    assert read_status(tmp_path).leaks == []
    with RunStore.open(tmp_path, read_only=True) as reader:
        assert reader.query("PRAGMA user_version")[0][0] == 1
        with RunStore.open(tmp_path) as store, RunStore.open(tmp_path) as second:
            Ledger(store).register("session", "s")
            assert names(Ledger(second)) == names(Ledger(reader)) == [("session", "s")]
            assert store.config() == CONFIG


def test_the_ledger_survives_kill_9_at_any_instant(store: RunStore) -> None:
    script = (
        "import itertools, sys\n"
        "from pathlib import Path\n"
        "from runners.system.processes.ledger import Ledger\n"
        "from runners.records.store.run_store import RunStore\n"
        "ledger = Ledger(RunStore.open(Path(sys.argv[1])))\n"
        "for number in itertools.count():\n"
        "    ledger.register('sandbox', str(number))\n"
        "    print(number, flush=True)\n"
        "    if number: ledger.unregister('sandbox', str(number - 1))\n"
    )
    arguments = [sys.executable, "-c", script, str(store.run_dir)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        lines = [driver.stdout.readline() for _ in range(200)]
        driver.send_signal(signal.SIGKILL)
        last = int([*lines, *driver.stdout.readlines()][-1])
    left = {int(entry.name) for entry in Ledger(store).find_leaks()}
    assert left <= {last - 1, last, last + 1}
    assert last in left


def test_a_full_or_closed_store_is_a_store_error(store: RunStore) -> None:
    with (
        RunStore.open(store.run_dir, read_only=True) as reader,
        pytest.raises(StoreError, match="cannot be written"),
    ):
        Ledger(reader).register("session", "s")


def test_a_service_that_ended_after_its_driver_is_no_leak(store: RunStore) -> None:
    ledger = Ledger(store)
    ledger.register("process", "engine-1", pid=1)
    ledger.register("process", "engine-2", pid=1)
    assign_to_a_dead_driver(store)
    store.database.execute("UPDATE ledger SET host = 'elsewhere' WHERE name = 'engine-2'")
    assert [leak.name for leak in read_status(store.run_dir).leaks] == ["engine-2"]
    assert len(ledger.find_leaks()) == 2, "the next start removes the entry and its files"


def test_the_status_counts_the_leaks_that_it_does_not_show(store: RunStore) -> None:
    from rich.console import Console

    from runners.observe.live.status import render

    ledger = Ledger(store)
    for number in range(7):
        ledger.register("sandbox", f"train-[{number}]")
    assign_to_a_dead_driver(store)
    status = read_status(store.run_dir)
    console = Console(width=100)
    with console.capture() as shown:
        console.print(render(status))
    assert "sandbox train-[0], " in shown.get()
    assert "and 2 more" in shown.get()
    assert len(json.loads(json.dumps(status.to_dict()))["leaks"]) == 7
