"""The document of a run adds up what happened in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conf.errors import ExitCode
from runners.observe.figures.statistics import task_interval
from runners.observe.report.report_data import TASKS, read_document
from runners.observe.report.sums import SLOWEST
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.records.text import dumps, loads
from tests.fakes.records import CONFIG, a_rollout, branched_run, example_run, run_with_parts
from tests.runners.observe.report.runs import routed_run


def test_the_interval_of_several_attempts_is_over_tasks(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        for group, member, solved in ((0, 0, True), (0, 1, True), (1, 0, False), (1, 1, False)):
            store.put_rollout(a_rollout(f"eval-000002-00{group}-0{member}", solved=solved))
        store.finish_evaluation(2, {"solve_rate": 0.5, "pass@2": 0.5, "tasks": 2, "graded": 4})
        last = read_document(store).rates[-1]
    assert (last.value, (last.low, last.high)) == (0.5, task_interval([1.0, 0.0]))


def test_outcomes_failures_and_tokens_add_up(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        document = read_document(store)
    sums = document.sums
    assert sums.outcomes == {"train": {"policy.finished": 3, "infra.sandbox_lost": 1}}
    (failure,) = sums.failures
    assert (failure.code, failure.count, failure.retried) == ("infra.sandbox_lost", 2, 1)
    assert (failure.stage, failure.message) == ("harness", "gone: {} %s \ufffd")
    assert sums.tokens["replaced"] == 4
    assert loads(dumps(document.to_dict()))["sums"]["failed"] == 2, "all of it is JSON"


def test_tasks_are_counted_by_solve_rate_with_an_example_of_each_split(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for name in ("eval-000001-000-00", "train-000001-00-00"):
            store.put_rollout(a_rollout(name, task_id="both", solved=True))
        store.put_rollout(a_rollout("train-000001-00-01", task_id="retried", counts=False))
        for group in range(TASKS + 2):
            name = f"eval-000002-{group:03}-00"
            store.put_rollout(a_rollout(name, task_id=f"task-{group}", solved=group > 0))
        document = read_document(store)
    train, held_out = document.train_tasks, document.held_out_tasks
    assert [(task.task, task.example) for task in train.shown] == [("both", "train-000001-00-00")]
    assert (train.bins[0], train.bins[-1]) == (("never", 0, 0), ("always", 1, 1))
    assert (held_out.tried, len(held_out.shown)) == (TASKS + 3, TASKS)
    assert held_out.shown[0].task == "task-0"
    assert "eval-000001-000-00" in [task.example for task in held_out.shown]


def test_parts_of_tasks_are_shown_where_they_are_paid(tmp_path: Path) -> None:
    for name, credit in (("paid", 0.3), ("unpaid", 0.0)):
        with run_with_parts(tmp_path / name, credit) as store:
            parts = read_document(store).to_dict()["status"]["parts"]
        assert ("1 of 3 graded, 25% of their tests on average" in parts) == (credit > 0)


def test_branches_and_breaks_are_listed_with_their_reasons(tmp_path: Path) -> None:
    with branched_run(tmp_path / "run", rollouts=2) as store:
        document = read_document(store)
    branches = [(each.kind, each.threads, each.turns, each.sampled) for each in document.branches]
    assert ("main", 2, 8, 24) in branches
    assert ("subagent", 2, 4, 12) in branches
    breaks = {each.kind: (each.count, each.example) for each in document.breaks}
    assert breaks["edit"] == (2, "edit: taken back")
    assert breaks["compaction"] == (2, "compaction: summed up")


def test_rollouts_that_took_longest_come_first_and_those_that_tampered_have_evidence(
    tmp_path: Path,
) -> None:
    accused = Outcome(OutcomeCode.POLICY_TAMPERED, Stage.GRADE, "canary: 2 of 3 passed")
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for member in range(20):
            record = a_rollout(f"train-000001-00-{member:02}")
            store.put_rollout(replace(record, timings={"harness": 1.0, "total": float(member)}))
        store.put_rollout(a_rollout("train-000001-00-20", outcome=accused, solved=False))
        sums = read_document(store).sums
    order = [int(line.rollout_id[-2:]) for line in sums.slowest]
    assert order == list(range(19, 19 - SLOWEST, -1))
    assert [line.message for line in sums.tampered] == ["canary: 2 of 3 passed"]
    assert (sums.tampered_count, sums.tampered_steps) == (1, {1: 1})


def test_the_newest_the_slowest_and_the_first_step_have_lanes(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for step, took in ((1, 1.0), (2, 9.0), (3, 2.0)):
            store.begin_step(step, ["t"])
            store.put_rollout(a_rollout(f"train-{step:06}-00-00"))
            store.finish_step(step, {"time/step_s": took})
        titles = [title for title, _ in read_document(store).lanes]
    assert titles == ["Step 3, the newest", "Step 2, the slowest (9.0 s)", "Step 1, the first"]


def test_alarms_of_routing_are_listed_with_layer_and_sample(tmp_path: Path) -> None:
    reason = "routes token 3 in layer 1 twice to one expert ([4, 4]): is it padding?"
    damaged = "RoutingError: the routing of turn 0 of session s belongs to other tokens"
    with routed_run(tmp_path / "run", **{"r3/refused_samples": 1.0}) as store:
        store.event("routing_refused", {"rollout_id": "train-000002-00-00", "reason": reason})
        store.event("unbuilt", {"rollout_id": "train-000001-00-00", "reason": damaged})
        store.event("unbuilt", {"rollout_id": "x", "reason": "ChainError: no concern of routing"})
        found = read_document(store).routing_alarms
    assert found == [("train-000002-00-00", reason), ("train-000001-00-00", damaged)]


@pytest.mark.parametrize(
    ("code", "message", "alarms"),
    [
        (ExitCode.FAILURE_BUDGET, "train-000002-00-00 routes token 3 twice", True),
        (ExitCode.SERVICE_GONE, "engine http://router:3000 /generate: unreachable", False),
        (ExitCode.FAILURE_BUDGET, "40 of 50 rollouts failed", False),
    ],
)
def test_a_failed_self_check_that_ended_the_run_is_an_alarm(
    tmp_path: Path, code: ExitCode, message: str, alarms: bool
) -> None:
    with routed_run(tmp_path / "run") as store:
        store.set_state(State.RUNNING)
        store.set_state(State.FAILED, exit_code=code, message=message)
        found = read_document(store).routing_alarms
    assert found == ([("the end of the run", message)] if alarms else [])
