"""``agentrl check``: its findings and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentrl


@pytest.mark.integration
def test_the_findings_are_one_json_document(agentrl: Agentrl) -> None:
    done = agentrl("check", "--json")
    found = json.loads(done.stdout)
    assert done.code == found["exit_code"] == 0
    assert (found["harness"]["kind"], found["turns"]) == ("native", 1)
    assert found["sandbox"]["isolation"]


@pytest.mark.integration
def test_the_findings_are_shown(agentrl: Agentrl) -> None:
    done = agentrl("check")
    assert done.code == 0
    assert "one turn" in done.stdout
    assert "no writes outside the workspace" in " ".join(done.stdout.split())


@pytest.mark.integration
def test_it_leaves_nothing_behind(agentrl: Agentrl) -> None:
    agentrl("check")
    assert list(Path.cwd().iterdir()) == []


def test_a_program_that_cannot_be_installed_has_exit_code_3(
    agentrl: Agentrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = agentrl("check", "harness=claude_code", "harness.binary=missing.tgz", "--json")
    assert done.code == 3
    assert "harness.binary=missing.tgz cannot be read" in json.loads(done.stdout)["error"]


def test_a_problem_of_the_preflight_fails_the_check(agentrl: Agentrl, tmp_path: Path) -> None:
    done = agentrl("check", f"model.path={tmp_path / 'none'}")
    assert done.code == 3
    assert "is not a directory" in done.stderr


def test_it_takes_what_eval_takes_and_says_everything_at_once(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"instance_id": "a"}\n')
    served = ["engine=sglang", "engine.url=http://127.0.0.1:9", "model.tokenizer=none"]
    measured = ["task.path=rows.jsonl", *served, "model.renderer=qwen4"]
    done = agentrl("check", "eval", "swebench", *measured)
    assert done.code == 3
    for part in (
        "rows.jsonl:1: its grading is unknown",
        "model.renderer='qwen4' is unknown",
        "Start the server that engine.url names",
        "model.tokenizer=none is not a directory",
    ):
        assert part in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_the_tasks_of_a_calibration_are_checked_without_a_policy(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"instance_id": "a"}\n')
    done = agentrl("check", "eval", "swebench", "task.path=rows.jsonl", "--gold")
    assert done.code == 5
    assert "rows.jsonl:1: its grading is unknown" in done.stderr
    assert "model=tiny" not in done.stderr


def test_a_mistyped_benchmark_is_refused(agentrl: Agentrl) -> None:
    assert "did you mean swebench?" in agentrl("check", "eval", "swebnch").stderr
