"""``agentrl tasks``: what it lists, and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runners.tasks.bugfix.family import write_repository
from tests.cli.conftest import Agentrl
from tests.fakes.harbor_tasks import toml, write_task
from tests.runners.tasks.dataset_rows import CLASSIC, write
from tests.runners.tasks.published_rows import ROWS


@pytest.mark.parametrize("sandbox", ["docker", "podman", "apptainer"])
def test_a_list_for_remote_sandboxes_needs_no_address_of_a_gateway(
    agentrl: Agentrl, tmp_path: Path, sandbox: str
) -> None:
    rows = write(tmp_path / "rows.jsonl", [{**CLASSIC, "image_name": "example/r:1"}])
    done = agentrl("tasks", "list", str(rows), f"sandbox={sandbox}", "--json")
    assert done.code == 0, done.stderr
    (task,) = json.loads(done.stdout)["tasks"]
    assert task["state"] == "ready"


def test_a_file_without_rows_is_no_list(agentrl: Agentrl, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    done = agentrl("tasks", "list", "empty.jsonl")
    assert (done.code, done.stderr) == (5, "error: empty.jsonl has no rows\n")


@pytest.fixture
def mixed(tmp_path: Path) -> list[dict[str, Any]]:
    """Write ``rows.jsonl``: two tasks with a repository, and two that need their image."""
    own = {**ROWS["eval_cmd"], "repo_path": "https://git.invalid/r", "base_commit": "1" * 40}
    rows = [own, {**own, "instance_id": "own-2"}, ROWS["scale_swe"], ROWS["r2e_gym"]]
    write(tmp_path / "rows.jsonl", rows)
    return rows


def test_an_ambiguous_row_is_refused_with_its_line_and_both_schemas(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    both = {**ROWS["swebench_live"], **ROWS["swe_rebench"]}
    write(tmp_path / "rows.jsonl", [ROWS["scale_swe"], both])
    done = agentrl("tasks", "list", "rows.jsonl", "sandbox=docker")
    assert done.code == 5
    assert "rows.jsonl:2: its fields are those of swebench_live and swe_rebench" in done.stderr
    assert "task.format=NAME" in done.stderr
    assert "acme_calc_pr7" in done.stdout


def test_the_states_can_be_read_at_eighty_columns(
    agentrl: Agentrl, mixed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = agentrl("tasks", "list", "rows.jsonl").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines if "own-1" in line] == [
        ["│", "ready", "│", "train", "│", "eval_cmd", "│", "own-1", "│"]
    ]
    assert any("needs image │ train │ r2e_gym   │ calc__555555555555" in line for line in lines)
    assert lines[-1] == "2 ready, 2 needs image"


def test_an_unknown_schema_is_a_usage_error(agentrl: Agentrl, mixed: list[dict[str, Any]]) -> None:
    done = agentrl("tasks", "list", "rows.jsonl", "--schema", "swegym")
    assert done.code == 2
    assert "--schema swegym: did you mean swe_gym? choose one of eval_cmd, " in done.stderr


def test_a_subset_is_converted_and_malformed_rows_are_named(
    agentrl: Agentrl, mixed: list[dict[str, Any]], tmp_path: Path
) -> None:
    write(tmp_path / "rows.jsonl", [*mixed, {"messages": []}, {**mixed[0], "instance_id": "a/b"}])
    (tmp_path / "aside").write_text("own-2  # flaky\n")
    words = ("tasks", "convert", "rows.jsonl", "out/ready.jsonl", "--state", "ready", "--json")
    done = agentrl(*words)
    assert done.code == 5
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        "rows.jsonl:5",
        "rows.jsonl:6",
    ]
    document = json.loads(done.stdout)
    assert document["written"] == ["own-1", "own-2"]
    listed = agentrl("tasks", "list", "out/ready.jsonl", "--json")
    assert json.loads(listed.stdout)["states"] == {"ready": 2}
    write(tmp_path / "rows.jsonl", mixed)
    done = agentrl("tasks", "convert", "rows.jsonl", "b.jsonl", "task.exclude=aside")
    assert (done.code, done.stdout) == (0, "b.jsonl\n")
    assert done.stderr == "warning: own-2 is set aside: flaky\n"
    assert agentrl("tasks", "list", "rows.jsonl", "task.exclude=aside").stdout.endswith(
        "1 ready, 2 needs image; 1 set aside\n"
    )
    assert len((tmp_path / "b.jsonl").read_text().splitlines()) == 3
    done = agentrl("tasks", "convert", "rows.jsonl", "c.jsonl", "--match", "none*")
    assert (done.code, (tmp_path / "c.jsonl").exists()) == (2, False)


def test_a_harbor_task_of_several_steps_is_refused_by_name(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    write_task(tmp_path / "suite" / "one")
    write_task(tmp_path / "suite" / "two", {"task.toml": toml(top="steps = [{ name = 'a' }]")})
    done = agentrl("tasks", "list", "suite", "--json")
    assert (done.code, done.stderr.partition(": ")[0]) == (5, "error")
    assert "two: " in done.stderr
    assert "several steps" in done.stderr
    assert [task["id"] for task in json.loads(done.stdout)["tasks"]] == ["example__one"]


def test_a_key_in_place_of_the_dataset_is_named(agentrl: Agentrl) -> None:
    done = agentrl("tasks", "list", "task.format=auto", "rows.jsonl")
    assert done.code == 2
    assert "task.format=auto is where PATH belongs" in done.stderr


SAYS_NOTHING = "the tasks were refused before anything was started"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "agentrl tasks check PATH"),
        (["rows.jsonl", "task.canary=1"], "task.canaries"),
        (["missing.jsonl"], "missing.jsonl"),
        (["rows.jsonl", "eval.ids=none"], "select no task"),
    ],
)
def test_a_check_that_cannot_start_says_how(
    agentrl: Agentrl, tmp_path: Path, words: list[str], said: str
) -> None:
    own = {**ROWS["eval_cmd"], "repo_path": "https://git.invalid/r", "base_commit": "1" * 40}
    write(tmp_path / "rows.jsonl", [own])
    done = agentrl("tasks", "check", *words)
    assert done.code in (2, 5), done.stderr
    assert said in done.stderr
    assert not (tmp_path / "runs").exists(), SAYS_NOTHING


@pytest.mark.integration
def test_a_check_names_what_pays_and_is_continued_as_a_check(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    write_repository(tmp_path / "repo", {"calc.py": "def double(x):\n    return x\n"})
    row = {
        "instance_id": "pays",
        "problem_statement": "double() does not.",
        "repo_path": "repo",
        "eval_cmd": "python3 -c 'from calc import double; assert double(2) == 4'",
        "patch": "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def double(x):\n"
        "-    return x\n+    return 2 * x\n",
    }
    write(tmp_path / "rows.jsonl", [row])
    few = ("eval.attempts_per_task=1", "observe.dashboard=off", "run.dir=checked")
    done = agentrl("tasks", "check", "rows.jsonl", *few)
    assert (done.code, done.stdout) == (1, "checked\n"), done.stderr
    assert "it would pay always-equal (1 of 1)" in done.stderr
    assert "--resume" not in done.stderr, "every task has its verdicts"
    assert "it would pay always-equal" in (tmp_path / "checked" / "report.html").read_text()
    again = agentrl("eval", "swebench", "--resume", "checked", "--json")
    document = json.loads(again.stdout)
    assert (again.code, document["benchmark"], document["causes"]) == (1, "tasks", {"pays": 1})
    assert not (tmp_path / "checked" / "report.json").exists(), "it is no evaluation"
    refused = agentrl("run", "--resume", "checked")
    assert refused.code == 2
    assert "continue it with `agentrl tasks check --resume checked`" in refused.stderr
    assert "check of" in agentrl("status", "checked").stdout
