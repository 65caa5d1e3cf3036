"""Report and predictions from stored rollouts, compared with numbers computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from runners.campaigns.evaluation.plan import Selection, rollout_id, select_tasks
from runners.campaigns.evaluation.report import EvaluationReport
from runners.campaigns.evaluation.results import BenchmarkChanged, Results, load_graded, model_name
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout
from tests.runners.campaigns.evaluation.conftest import a_benchmark, a_config, a_task

TASKS = [a_task("t0"), a_task("t1"), a_task("t2", "slice"), a_task("t3", "slice"), a_task("t4")]
TWO = a_config("eval.attempts_per_task=2", "model.path=/weights")


def a_record(place: int, sample: int, what: str, **changes: Any) -> RolloutRecord:
    """A rollout of a task that ended like ``what``: solved, unsolved, or an outcome code."""
    name = rollout_id(place, sample)
    if what in ("solved", "unsolved"):
        ended: dict[str, Any] = {"solved": what == "solved", "reward": float(what == "solved")}
    else:
        stage = Stage.GRADE if what.startswith("grader.") else Stage.BOOT
        ended = {"outcome": Outcome(OutcomeCode(what), stage), "solved": None, "reward": None}
    return a_rollout(
        **{"rollout_id": name, "task_id": TASKS[place].id, "session_id": f"{name}-a0"}
        | ended
        | changes
    )


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """t0 is solved twice, t1 once; t2 is unsolved, then lost; t3 is lost, then its grading."""
    store = RunStore.create(tmp_path / "run", CONFIG)
    for record in (
        a_record(0, 0, "solved", turns=1),
        a_record(0, 1, "solved", turns=2),
        a_record(1, 0, "unsolved", patch="", turns=3),
        a_record(1, 1, "solved", turns=10),
        a_record(2, 0, "unsolved", turns=4),
        a_record(2, 1, "infra.sandbox_start", counts=False),
        a_record(2, 1, "infra.model", attempt=1, patch="", turns=1000),
        a_record(3, 0, "infra.sandbox_lost", patch="half of it"),
        a_record(3, 1, "grader.timeout"),
    ):
        store.put_rollout(record)
    store.event("fault", {"where": "grade", "what": "hang", "k": 1})
    store.event("fault", {"where": "turn", "what": "cut", "k": 1})
    store.event("fault", {"where": "turn", "what": "cut", "k": 2})
    return store


def results(store: RunStore, *, without: tuple[str, ...] = ()) -> Results:
    benchmark = a_benchmark(*TASKS)
    chosen = select_tasks(benchmark, TWO).instances
    left = tuple(each for each in chosen if each.task.id not in without)
    return Results(store, benchmark, TWO, Selection(left, without))


def the_report(store: RunStore, *, without: tuple[str, ...] = ()) -> EvaluationReport:
    return results(store, without=without).report(12.34)


def test_rollouts_are_valid_or_failed_or_not_run_and_never_two_of_them(store: RunStore) -> None:
    rollouts = the_report(store).rollouts
    assert rollouts.wanted == 10 == rollouts.valid + rollouts.error + rollouts.not_run
    assert (rollouts.valid, rollouts.solved, rollouts.unsolved) == (5, 3, 2)
    assert (rollouts.error, rollouts.not_run) == (3, 2)
    assert rollouts.errors == {"grader.timeout": 1, "infra.model": 1, "infra.sandbox_lost": 1}
    assert rollouts.outcomes == {"policy.finished": 5}


def test_a_verdict_never_counts_for_another_task(store: RunStore) -> None:
    longer = a_benchmark(*TASKS, a_task("t5"))
    assert Results(store, longer, TWO, select_tasks(longer, TWO)).report(1.0).rollouts.valid == 5
    moved = a_benchmark(a_task("new"), *TASKS)
    with pytest.raises(
        BenchmarkChanged, match=f"is a rollout at {TASKS[0].id}, and new is in its place"
    ):
        Results(store, moved, TWO, select_tasks(moved, TWO))


def test_rates_are_over_valid_rollouts_only(store: RunStore) -> None:
    one, two = the_report(store).pass_at
    # t0: 2 of 2, t1: 1 of 2, t2: 0 of 1; nothing is known of t3 and t4
    assert (one.k, one.tasks) == (1, 3)
    assert one.value == pytest.approx((1 + 0.5 + 0) / 3)
    assert one.wilson is not None
    assert (one.wilson.low, one.wilson.high) == pytest.approx((0.2307, 0.8824), abs=5e-5)  # 3 of 5
    # t0 and t1 have two: 1 - C(0,2)/C(2,2) and 1 - C(1,2)/C(2,2)
    assert (two.k, two.tasks, two.value, two.wilson) == (2, 2, 1.0, None)
    assert one.bootstrap.low <= one.value <= one.bootstrap.high
    assert the_report(store).tasks_without_verdict == ["t3", "t4"]


def test_the_official_counts_are_about_the_first_rollout_of_each_task(store: RunStore) -> None:
    report = the_report(store)
    assert report.resolved_ids == ["t0"]
    assert report.unresolved_ids == ["t2"]
    assert report.empty_patch_ids == ["t1"]
    assert report.error_ids == []
    assert report.failed_ids == ["t3"], "it failed before there was a patch"
    assert report.incomplete_ids == ["t3", "t4"]
    assert report.submitted_ids == ["t0", "t1", "t2"]
    assert report.completed_ids == ["t0", "t2"]
    [second] = report.further_samples
    assert (second.resolved_ids, second.error_ids) == (["t0", "t1"], ["t3"])
    assert second.submitted_ids == ["t0", "t1", "t3"], "t3 has a patch, only its grading failed"
    for counts in (report, second):
        document = counts.model_dump()
        for name in ("submitted", "completed", "resolved", "unresolved", "empty_patch", "error"):
            assert document[f"{name}_instances"] == len(document[f"{name}_ids"])
        assert counts.total_instances == 5


def test_predictions_have_the_official_form_and_no_patch_of_a_failed_rollout(
    store: RunStore,
) -> None:
    found = results(store)
    lines = [json.loads(line) for line in found.predictions(0).splitlines()]
    assert [line["instance_id"] for line in lines] == ["t0", "t1", "t2"]
    assert lines[0] == {
        "instance_id": "t0",
        "model_name_or_path": "/weights",
        "model_patch": "--- a/x.py\n+++ b/x.py\n",
    }
    assert lines[1]["model_patch"] == ""
    second = [json.loads(line) for line in found.predictions(1).splitlines()]
    assert [line["instance_id"] for line in second] == ["t0", "t1", "t3"]


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (["model.path=/weights"], "/weights"),
        (["engine=sglang", "engine.url=http://h:1", "model.tokenizer=/models/Qwen3-8B",
          "model.renderer=qwen3"], "/models/Qwen3-8B"),
        ([], "tiny"),
    ],
)  # fmt: skip
def test_predictions_name_the_model(lines: list[str], name: str) -> None:
    assert model_name(compose(lines)) == name


def test_parts_and_spreads_leave_failures_out(store: RunStore) -> None:
    report = the_report(store)
    parts = report.breakdown.parts
    assert report.breakdown.by == "kind of bug"
    assert (parts["operator"].tasks, parts["operator"].valid, parts["operator"].solved) == (3, 4, 3)
    assert parts["operator"].pass_at_1 == pytest.approx((1 + 0.5) / 2)
    assert (parts["slice"].tasks, parts["slice"].valid, parts["slice"].pass_at_1) == (2, 1, 0.0)
    turns = report.usage.turns
    assert turns is not None
    assert (turns.mean, turns.p50, turns.max) == (4.0, 3.0, 10.0)


def test_injected_faults_and_observed_failures_are_counted(store: RunStore) -> None:
    faults = the_report(store).faults
    assert faults.injected == {"grade.hang": 1, "turn.cut": 2}
    assert faults.failed_attempts == {
        "grader.timeout": 1,
        "infra.model": 1,
        "infra.sandbox_lost": 1,
        "infra.sandbox_start": 1,
    }


def test_a_rollout_that_changed_the_tests_is_named_with_the_files(store: RunStore) -> None:
    assert the_report(store).protected_touched == {}
    store.put_rollout(
        a_record(0, 1, "solved", turns=2, extra={"protected_touched": ["tests/a.py"]})
    )
    assert the_report(store).protected_touched == {rollout_id(0, 1): ["tests/a.py"]}
    assert the_report(store).tampered == {}


def test_attempts_to_reach_other_hosts_are_named(store: RunStore) -> None:
    tried = [
        {"host": "pypi.org", "port": 443, "allowed": False, "count": 3},
        {"host": "mirror.example", "port": 80, "allowed": True, "count": 1},
    ]
    store.put_rollout(a_record(0, 1, "solved", turns=2, extra={"egress": tried}))
    found = ["denied pypi.org:443", "allowed mirror.example:80"]
    assert the_report(store).egress == {rollout_id(0, 1): found}


def test_tampering_and_the_official_verdict_stand_apart_from_solved(store: RunStore) -> None:
    accusation = Outcome(OutcomeCode.POLICY_TAMPERED, Stage.GRADE, "canary: 2 of 3")
    tampered = a_record(0, 1, "unsolved", verdict={"official": True}, outcome=accusation)
    store.put_rollout(tampered)
    store.put_rollout(a_record(0, 0, "solved", turns=1, verdict={"official": True}))
    report = the_report(store)
    assert report.tampered == {rollout_id(0, 1): "canary: 2 of 3"}
    assert report.official_resolved == {rollout_id(0, 0): True, rollout_id(0, 1): True}
    assert (report.rollouts.solved, report.rollouts.unsolved) == (2, 3)
    assert report.rollouts.outcomes["policy.tampered"] == 1


def test_unverified_rollouts_and_signs_of_tampering_are_named(
    store: RunStore,
) -> None:
    assert (the_report(store).unverified, the_report(store).signs) == ({}, {})
    verdict = {"unverified": "no assertion", "signs": ["frames"]}
    store.put_rollout(a_record(0, 1, "solved", turns=2, verdict=verdict))
    report = the_report(store)
    assert report.unverified == {rollout_id(0, 1): "no assertion"}
    assert report.signs == {rollout_id(0, 1): ["frames"]}
    assert report.rollouts.solved == 3


def test_a_task_set_aside_is_named_and_in_no_count(store: RunStore) -> None:
    report = the_report(store, without=("t3", "t4"))
    assert report.set_aside == ["t3", "t4"]
    assert (report.total_instances, report.rollouts.wanted, report.rollouts.error) == (3, 6, 1)
    assert report.tasks_without_verdict == []


def test_an_evaluation_without_a_valid_rollout_has_a_report(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "empty", CONFIG) as store:
        report = the_report(store)
        assert (report.pass_at, report.usage.turns, report.rollouts.not_run) == ([], None, 10)


def test_graded_rollouts_are_not_repeated_and_failed_ones_are(store: RunStore) -> None:
    graded = {rollout_id(*at) for at in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))}
    assert set(load_graded(store)) == graded


def test_a_report_is_read_back_from_its_json(store: RunStore) -> None:
    text = the_report(store).model_dump_json()
    assert EvaluationReport.model_validate_json(text) == the_report(store)
