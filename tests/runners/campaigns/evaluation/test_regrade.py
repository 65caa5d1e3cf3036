"""Grade stored patches again with the real grader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from conf.errors import ConfigError, ExitCode
from runners.campaigns.evaluation.plan import rollout_id
from runners.campaigns.evaluation.regrade import Flip, RegradeResult, regrade
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import RolloutRecord
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.tasks.contract import Task
from runners.tasks.sets.task_sets import load_tasks
from tests.fakes.records import a_rollout

pytestmark = pytest.mark.integration

CONFIG = compose(
    [
        "run.steps=0",
        "run.eval_tasks=0",
        "task.train_tasks=1",
        "task.held_out_tasks=4",
        "observe.dashboard=off",
    ]
)
FAILED = Outcome(OutcomeCode.GRADER_TIMEOUT, Stage.GRADE, "too slow")
LOST = Outcome(OutcomeCode.INFRA_SANDBOX_LOST, Stage.HARNESS, "gone")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Task]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield [task for task in load_tasks(CONFIG) if task.split == "held_out"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """The store of an evaluation that was interrupted."""
    with RunStore.create(tmp_path / "run", CONFIG.model_dump(mode="json")) as store:
        store.set_state(State.RUNNING, benchmark="bugfix")
        store.set_state(State.INTERRUPTED, exit_code=130, benchmark="bugfix")
        yield store


def put(store: RunStore, task: Task, place: int, **changes: Any) -> RolloutRecord:
    """Store an ungraded attempt at a task with its reference patch."""
    name = rollout_id(place, 0)
    record = a_rollout(
        name,
        task_id=task.id,
        patch=task.gold_patch,
        counts=False,
        solved=None,
        reward=None,
        verdict=None,
        outcome=Outcome(OutcomeCode.POLICY_FINISHED, Stage.HARNESS),
    )
    record = replace(record, **changes)
    record = replace(record, session_id=f"{name}-a{record.attempt}")
    store.put_rollout(record)
    return record


def again(store: RunStore, *overrides: str, **options: Any) -> RegradeResult:
    return regrade(store.run_dir, list(overrides), **options)


def test_a_rollout_whose_grading_was_interrupted_gets_its_verdict_and_counts(
    store: RunStore, tasks: list[Task]
) -> None:
    cut = put(store, tasks[0], 0)
    result = again(store)
    assert (result.graded, result.solved, result.exit_code) == (1, 1, ExitCode.DONE)
    found = store.rollout(cut.rollout_id)
    assert found is not None
    assert (found.attempt, found.solved, found.reward) == (0, True, 1.0)
    assert found.outcome.code is OutcomeCode.POLICY_FINISHED
    assert found.verdict is not None
    assert found.verdict["reason"] == "all tests pass"
    assert store.state().state is State.INTERRUPTED, "it is still to be resumed"
    report = json.loads((store.run_dir / "report.json").read_text())
    assert report["resolved_ids"] == [tasks[0].id]


def test_a_failed_grading_is_replaced_by_the_agent_s_outcome(
    store: RunStore, tasks: list[Task]
) -> None:
    extra = {"agent_code": "budget.turns"}
    put(store, tasks[0], 0, outcome=FAILED, counts=True, patch="", extra=extra)
    assert again(store).graded == 1
    found = store.rollout(rollout_id(0, 0))
    assert found is not None
    assert (found.outcome.code, found.solved) == (OutcomeCode.BUDGET_TURNS, False)
    [event] = store.events("regraded")
    assert event.data["before"]["code"] == "grader.timeout"


@pytest.mark.parametrize(
    ("patch", "code"), [(None, OutcomeCode.POLICY_FINISHED), ("", OutcomeCode.POLICY_GAVE_UP)]
)
def test_a_new_verdict_decides_again_whether_an_agent_that_stopped_has_given_up(
    patch: str | None, code: OutcomeCode, store: RunStore, tasks: list[Task]
) -> None:
    changes: dict[str, Any] = {} if patch is None else {"patch": patch}
    stopped = put(store, tasks[0], 0, extra={"agent_code": "policy.gave_up"}, **changes)
    again(store)
    found = store.rollout(stopped.rollout_id)
    assert found is not None
    assert found.outcome.code is code


def test_an_accusation_that_regrading_does_not_confirm_is_taken_back(
    store: RunStore, tasks: list[Task]
) -> None:
    accused = Outcome(OutcomeCode.POLICY_TAMPERED, Stage.GRADE, "canary: 2 of 3")
    put(store, tasks[0], 0, outcome=accused, solved=False, counts=True)
    assert again(store, everything=True).graded == 1
    found = store.rollout(rollout_id(0, 0))
    assert found is not None
    assert (found.outcome.code, found.solved) == (OutcomeCode.POLICY_FINISHED, True)


def test_an_ungraded_patch_replaces_the_failures_that_came_after_it(
    store: RunStore, tasks: list[Task]
) -> None:
    put(store, tasks[0], 0, outcome=FAILED)
    put(store, tasks[0], 0, attempt=1, outcome=LOST, patch="", counts=True)
    assert (again(store).chosen, again(store).chosen) == (1, 0)
    [counting] = store.rollouts(counts=True)
    assert (counting.attempt, counting.solved) == (0, True)


def test_rollouts_with_a_verdict_or_without_a_patch_are_not_graded(
    store: RunStore, tasks: list[Task]
) -> None:
    put(store, tasks[0], 0)
    put(store, tasks[0], 0, attempt=1, solved=False, counts=True)
    put(store, tasks[1], 1, outcome=LOST, counts=True)
    before = store.rollouts()
    assert again(store).chosen == 0
    assert store.rollouts() == before


def test_with_all_a_verdict_can_flip_and_the_old_one_is_kept(
    store: RunStore, tasks: list[Task]
) -> None:
    wrong = put(store, tasks[0], 0, solved=False, counts=True, verdict={"reason": "a bad grader"})
    right = put(store, tasks[1], 1, solved=True, counts=True)
    result = again(store, everything=True)
    assert (result.graded, result.solved) == (2, 2)
    assert result.flips == (Flip(wrong.rollout_id, tasks[0].id, "unsolved", "solved"),)
    events = {event.data["rollout_id"]: event.data for event in store.events("regraded")}
    assert events[wrong.rollout_id]["before"]["verdict"] == {"reason": "a bad grader"}
    assert [events[r.rollout_id]["flipped"] for r in (wrong, right)] == [True, False]


def test_the_record_of_a_finished_step_is_not_changed(store: RunStore, tasks: list[Task]) -> None:
    trained = put(
        store, tasks[0], 0,
        rollout_id="train-000001-000-00", split="train", step=1, solved=False, counts=True,
    )  # fmt: skip
    store.begin_step(1, [tasks[0].id])
    store.finish_step(1, {})
    assert len(again(store, everything=True).flips) == 1
    assert store.rollout(trained.rollout_id) == trained
    assert len(store.events("regraded")) == 1


def test_only_one_outcome_code_is_chosen_if_one_is_given(
    store: RunStore, tasks: list[Task]
) -> None:
    put(store, tasks[0], 0, outcome=FAILED)
    put(store, tasks[1], 1)
    assert again(store, only="grader.timeout").chosen == 1
    [done] = store.rollouts(counts=True)
    assert done.task_id == tasks[0].id


def test_a_patch_that_still_cannot_be_graded_is_named_and_changes_nothing(
    store: RunStore, tasks: list[Task]
) -> None:
    unknown = replace(tasks[0], id="held_out-9999")
    record = put(store, unknown, 0, outcome=FAILED, counts=True)
    result = again(store)
    assert result.exit_code is ExitCode.FAILURE_BUDGET
    assert result.not_graded == {record.rollout_id: "there is no task held_out-9999"}
    assert store.rollout(record.rollout_id) == record


def test_a_run_with_a_running_driver_is_refused(store: RunStore, tasks: list[Task]) -> None:
    put(store, tasks[0], 0)
    store.set_state(State.RUNNING)
    with pytest.raises(StoreError, match="is driven by process"):
        again(store)


def test_only_keys_that_grading_needs_may_change(store: RunStore) -> None:
    assert again(store, "rollout.deadlines.grade_s=90", "sandbox.memory_mb=2048").chosen == 0
    with pytest.raises(ConfigError, match="seed was 0"):
        again(store, "seed=1")
