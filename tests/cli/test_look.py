"""``report``, ``compare`` and ``watch``: output and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from runners.records.store.run_state import State
from tests.cli.conftest import Agentrl
from tests.fakes.records import example_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    with example_run(tmp_path / "run") as store:
        store.set_state(State.RUNNING)
        store.set_state(State.INTERRUPTED, exit_code=130, message="stopped")
    return tmp_path / "run"


def test_report_prints_the_path_of_the_page(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("report", str(run_dir))
    assert (done.code, done.stdout) == (0, f"{run_dir / 'report.html'}\n")
    page = (run_dir / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    done = agentrl("report", str(run_dir), "--out", "other.html", "--json")
    assert json.loads(done.stdout) == {
        "report": "other.html",
        "bytes": Path("other.html").stat().st_size,
    }


def test_compare_shows_runs_and_their_differences(agentrl: Agentrl, run_dir: Path) -> None:
    example_run(run_dir.with_name("second")).close()
    done = agentrl("compare", str(run_dir), str(run_dir.with_name("second")))
    assert done.code == 0
    for part in (
        "second",
        "25.0 → 75.0 (30–95)",
        "interrupted",
        "their configurations are the same",
    ):
        assert part in done.stdout
    copy = shutil.copytree(run_dir, run_dir.with_name("copy"))
    document = json.loads(agentrl("compare", str(run_dir), str(copy), "--json").stdout)
    assert [run["exit_code"] for run in document["runs"]] == [130, 130]


def test_compare_needs_two_runs(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("compare", str(run_dir))
    assert done.code == 2
    assert "two runs" in done.stderr


def test_watch_ends_with_the_exit_code_of_the_run(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("watch", str(run_dir))
    assert done.code == 130
    assert "interrupted" in done.stdout


@pytest.mark.parametrize("command", ["report", "watch"])
def test_a_directory_without_a_run_is_refused(
    agentrl: Agentrl, tmp_path: Path, command: str
) -> None:
    done = agentrl(command, str(tmp_path))
    assert done.code == 5
    assert "holds no run" in done.stderr
