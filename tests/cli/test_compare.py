"""``agentrl compare`` and ``status`` of evaluations fit terminals of 80 and 120 columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.records.text import clean_text
from tests.cli.conftest import Agentrl
from tests.fakes.hostile import STEERING, TEXTS
from tests.fakes.records import CONFIG, a_rollout, example_run

Golden = Callable[[str, str], None]


@pytest.fixture(params=[80, 120])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the columns of the terminal."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def evaluate(run_dir: Path, solved: list[bool], **info: Any) -> Path:
    """Write a run whose evaluation has one rollout per task."""
    with RunStore.create(run_dir, CONFIG) as store:
        for number, verdict in enumerate(solved):
            name, task = f"eval-000003-{number:03}-00", f"repository__issue-{number}"
            store.put_rollout(a_rollout(name, task_id=task, solved=verdict))
        if not info:
            rate = sum(solved) / len(solved)
            store.finish_evaluation(0, {"solve_rate": 0.25, "tasks": len(solved)})
            store.finish_evaluation(3, {"solve_rate": rate, "tasks": len(solved)})
        store.set_state(State.RUNNING, **info)
        store.set_state(State.DONE, exit_code=0, wall_s=61.0, **info)
    return run_dir


def test_a_comparison_fits_the_terminal(
    agentrl: Agentrl, tmp_path: Path, golden: Golden, width: int
) -> None:
    first = evaluate(tmp_path / "20260101-120000-linear", [False] * 20 + [True] * 4)
    second = evaluate(tmp_path / "20260101-130000-linear", [True] * 20 + [True, False] * 2)
    shown = agentrl("compare", str(first), str(second)).stdout
    assert max(map(len, shown.splitlines())) <= width
    for part in ("+75.0 (", "gained", "repository__issue-0, ", "and 8 more"):
        assert part in " ".join(shown.split())
    golden(f"compare-{width}.txt", "\n".join(map(str.rstrip, shown.splitlines())) + "\n")
    document = json.loads(agentrl("compare", str(first), str(second), "--json").stdout)
    [pair] = document["pairs"]
    assert (len(pair["gained"]), len(pair["lost"]), pair["p"] < 0.001) == (20, 2, True)


def test_a_report_has_the_comparison_with_another_run_as_json(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    before = evaluate(tmp_path / "before", [True, False])
    after = evaluate(tmp_path / "after", [False, True])
    shown = agentrl("report", str(after), "--against", str(before), "--json")
    document = json.loads(shown.stdout)
    assert '"against":{"label":"before"' in Path(document["report"]).read_text("utf-8")
    pair = document["against"]
    assert (pair["run"], pair["against"], pair["tasks"]) == ("after", "before", 2)
    assert (pair["lost"], pair["gained"]) == (["repository__issue-0"], ["repository__issue-1"])


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_task_s_name_forges_no_line(agentrl: Agentrl, tmp_path: Path, text: str) -> None:
    for folder, solved in (("a", False), ("b", True)):
        with RunStore.create(tmp_path / folder, CONFIG) as store:
            name = clean_text(f"{text}\nlost  b: every-task")
            store.put_rollout(a_rollout("eval-000003-000-00", task_id=name, solved=solved))
            store.finish_evaluation(3, {"solve_rate": float(solved), "tasks": 1})
    shown = agentrl("compare", str(tmp_path / "a"), str(tmp_path / "b")).stdout
    assert STEERING.search(shown) is None
    assert not [line for line in shown.splitlines() if line.startswith("lost")]
    assert [line for line in shown.splitlines() if line.startswith("gained")]


def test_the_status_of_an_evaluation_shows_pass_at_k(agentrl: Agentrl, tmp_path: Path) -> None:
    run = evaluate(tmp_path / "eval", [True, True, True, False], benchmark="bugfix")
    assert "75.0% (30.1% to 95.4%, 4 tasks)" in agentrl("status", str(run)).stdout
    [passed] = json.loads(agentrl("status", str(run), "--json").stdout)["passes"]
    assert (passed["k"], passed["value"], passed["tasks"]) == (1, 0.75, 4)


def test_a_status_fits_the_terminal(
    agentrl: Agentrl, tmp_path: Path, golden: Golden, width: int
) -> None:
    campaign = example_run(tmp_path / "20260101-120000-linear")
    name = "a-task-with-a-name-that-is-longer-than-the-terminal-is-wide-" * 3
    accused = Outcome(OutcomeCode.POLICY_TAMPERED, Stage.GRADE, f"canary: {name}")
    campaign.put_rollout(a_rollout("train-000001-00-07", outcome=accused, solved=False))
    campaign.close()
    measured = evaluate(
        tmp_path / "20260101-130000-bugfix", [True, True, True, False], benchmark="bugfix"
    )
    shown = agentrl("status", str(tmp_path / "20260101-120000-linear")).stdout
    shown += agentrl("status", str(measured)).stdout
    assert max(map(len, shown.splitlines())) <= width
    for part in ("GPU hours", "not known", "pass@1", "75.0% (30.1% to 95.4%, 4 tasks)"):
        assert part in shown
    ago = re.compile(r"\d+:\d\d ago")
    golden(f"status-{width}.txt", ago.sub("0:00 ago", shown))
