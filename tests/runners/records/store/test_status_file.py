"""A run's status as a file: whole, read anywhere, and the store kept to the machine that has it."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from runners.observe.live.remote_status import read_remote_status, write_document
from runners.observe.live.status import read_status
from runners.records.store.run_state import REMOTE_SILENCE_S
from runners.records.store.run_store import RunStore
from runners.records.store.status_file import STATUS_FILE, find_remote_driver, read_status_file
from runners.records.store.store_error import StoreError


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    RunStore.create(tmp_path / "run", {"run": {"steps": 3}}).close()
    return tmp_path / "run"


def write_status(run_dir: Path, **changes: Any) -> None:
    status = read_status(run_dir).to_dict()
    here = {"state": "running", "driver_host": "node7", "updated_at": time.time()}
    write_document(run_dir / STATUS_FILE, {**status, **here, **changes})


def test_a_store_that_another_machine_drives_is_not_opened_here(run_dir: Path) -> None:
    write_status(run_dir)
    for read_only in (True, False):
        with pytest.raises(StoreError, match="driven on node7") as caught:
            RunStore.open(run_dir, read_only=read_only)
        assert caught.value.exit_code == 2
    found = read_remote_status(run_dir)
    assert found is not None
    assert (found.state, found.driver_host, found.steps) == ("running", "node7", 3)
    assert found.resume_command is None


@pytest.mark.parametrize(
    "changes",
    [
        {"driver_host": socket.gethostname()},
        {"state": "done"},
        {"updated_at": time.time() - 2 * REMOTE_SILENCE_S},
    ],
)
def test_a_store_that_no_other_machine_drives_is_opened(
    run_dir: Path, changes: dict[str, Any]
) -> None:
    write_status(run_dir, **changes)
    assert find_remote_driver(run_dir) is None
    assert read_remote_status(run_dir) is None
    RunStore.open(run_dir, read_only=True).close()


def test_leaks_and_curves_come_back_as_they_were(run_dir: Path) -> None:
    leak = {"kind": "sandbox", "name": "s", "age_s": 1.0}
    write_status(run_dir, leaks=[leak], evaluations=[[0, 0.5]], what_a_later_version_adds=1)
    found = read_remote_status(run_dir)
    assert found is not None
    assert [asdict(each) for each in found.leaks] == [leak]
    assert [tuple(point) for point in found.evaluations] == [(0, 0.5)]


def test_a_reader_finds_a_whole_document(run_dir: Path) -> None:
    write_document(run_dir / STATUS_FILE, {"state": "running", "text": "x" * 100_000})
    write_document(run_dir / STATUS_FILE, {"state": "done"})
    assert json.loads((run_dir / STATUS_FILE).read_text()) == {"state": "done"}
    assert [file.name for file in run_dir.glob("status*")] == [STATUS_FILE]
    (run_dir / STATUS_FILE).write_text("{")
    assert read_status_file(run_dir) is None
    with pytest.raises(StoreError):
        write_document(run_dir / "missing" / STATUS_FILE, {})
