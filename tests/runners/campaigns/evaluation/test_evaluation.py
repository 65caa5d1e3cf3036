"""Real evaluations: engine, gateway, sandboxes and grader, with an untrained policy."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ExitCode
from runners.campaigns.evaluation.benchmarks import BENCHMARKS
from runners.campaigns.evaluation.plan import rollout_id
from runners.campaigns.evaluation.report import EvaluationReport
from runners.campaigns.evaluation.run import run_evaluation
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from tests.fakes.records import a_rollout
from tests.runners.campaigns.conftest import SMALL, Miniature
from tests.runners.campaigns.evaluation.conftest import a_config

pytestmark = pytest.mark.integration

SHORT = ("harness.max_turns=2", "sampling.max_new_tokens=24")
LOSE_TWO = """\
seed: 0
rules:
  - {where: sandbox_boot, when: {rollouts: "eval-000000-001-*"}, what: error}
  - {where: grade, when: {rollouts: "eval-000000-002-*"}, what: error}
"""


def attempts(mini: Miniature) -> dict[str, tuple[int, str]]:
    """Return the final attempt of each rollout, and its outcome."""
    with mini.store() as store:
        return {
            record.rollout_id: (record.attempt, record.outcome.code)
            for record in store.rollouts(counts=True)
        }


def report_of(document: dict[str, Any]) -> EvaluationReport:
    """The report in a document of ``--json``."""
    own = ("run_dir", "exit_code", "message")
    return EvaluationReport.model_validate(
        {k: v for k, v in document.items() if k not in own}, strict=True
    )


def test_an_interrupted_evaluation_continues_and_repeats_nothing(evaluation: Miniature) -> None:
    process = evaluation.begin(*SHORT, "eval.attempts_per_task=2", "rollout.concurrency=1")
    evaluation.wait_until(lambda store: bool(store.rollouts(counts=True)), process)
    process.send_signal(signal.SIGINT)
    first = report_of(evaluation.finish(process, ExitCode.INTERRUPTED))
    before = attempts(evaluation)
    assert 0 < first.rollouts.valid == len(before) < 8
    assert first.rollouts.not_run == 8 - len(before)
    with evaluation.store() as store:
        assert store.state().state is State.INTERRUPTED

    second = report_of(
        evaluation.finish(evaluation.resume("eval.attempts_per_task=3", "rollout.concurrency=8"))
    )
    after = attempts(evaluation)
    assert {name: after[name] for name in before} == before
    assert (len(after), second.rollouts.valid, second.rollouts.not_run) == (12, 12, 0)
    assert [row.k for row in second.pass_at] == [1, 2, 3]
    written = EvaluationReport.model_validate_json((evaluation.run_dir / "report.json").read_text())
    assert written == second
    for name in ("predictions.jsonl", "predictions-2.jsonl", "predictions-3.jsonl"):
        lines = (evaluation.run_dir / name).read_text().splitlines()
        ids = Counter(json.loads(line)["instance_id"] for line in lines)
        assert ids == Counter(f"held_out-{n:04d}" for n in range(4))


def test_failures_are_not_verdicts_and_a_resume_retries_them(
    evaluation: Miniature, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(LOSE_TWO)
    process = evaluation.begin(*SHORT, "rollout.attempts=1", "faults=file", f"faults.path={plan}")
    document = evaluation.finish(process, ExitCode.FAILURE_BUDGET)
    assert "2 tasks have no valid rollout (held_out-0001, held_out-0002)" in document["message"]
    report = report_of(document)
    assert report.failed_ids == report.tasks_without_verdict == ["held_out-0001", "held_out-0002"]
    assert report.submitted_ids == ["held_out-0000", "held_out-0002", "held_out-0003"]
    assert (report.rollouts.valid, report.rollouts.error, report.pass_at[0].tasks) == (2, 2, 2)
    assert set(report.faults.injected) == {"sandbox_boot.error", "grade.error"}
    before = attempts(evaluation)

    again = report_of(evaluation.finish(evaluation.resume("faults=none")))
    assert (again.rollouts.valid, again.rollouts.error) == (4, 0)
    assert sum(again.faults.failed_attempts.values()) == 2
    after = attempts(evaluation)
    for place in range(4):
        name = f"eval-000000-{place:03d}-00"
        failed = place in (1, 2)
        assert after[name][0] == before[name][0] + failed, "a failure is replaced, a verdict stays"


def test_a_dead_engine_ends_the_evaluation_with_code_4_and_a_report(
    tmp_path: Path, cache: Path, untrained_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    policy = [f"model.path={untrained_policy}", f"model.tokenizer={untrained_policy}"]
    nobody = [
        "model=tiny",
        "engine=sglang",
        "engine.url=http://127.0.0.1:9",
        "observe.dashboard=off",
    ]
    config = a_config(*SMALL, "run.eval_tasks=0", *policy, *nobody)
    result = run_evaluation(BENCHMARKS["bugfix"], config, tmp_path / "run")
    assert result.end.exit_code is ExitCode.SERVICE_GONE
    assert "127.0.0.1:9" in result.end.message
    assert result.report is not None
    assert result.report.rollouts.not_run == 4
    assert (tmp_path / "run" / "report.json").exists()


def test_an_evaluation_of_a_changed_benchmark_is_not_continued(
    untrained_policy: Path, tmp_path: Path
) -> None:
    policy = [f"model.path={untrained_policy}", f"model.tokenizer={untrained_policy}"]
    config = a_config(*SMALL, "run.eval_tasks=0", *policy, "observe.dashboard=off")
    name = rollout_id(0, 0)
    with RunStore.create(tmp_path / "run", config.model_dump(mode="json")) as store:
        store.set_state(State.RUNNING, benchmark="bugfix")
        store.set_state(State.INTERRUPTED, exit_code=130, benchmark="bugfix")
        store.put_rollout(a_rollout(name, task_id="old", session_id=f"{name}-a0", solved=True))
    result = run_evaluation(BENCHMARKS["bugfix"], config, tmp_path / "run", resume=True)
    assert result.end.exit_code is ExitCode.DATA_REFUSED
    assert f"{name} is a rollout at old" in result.end.message
    assert result.report is None
