"""A report names the tasks that another run solved and this one does not, and the reverse."""

from __future__ import annotations

from pathlib import Path

from runners.observe.report.against import read_against
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout


def evaluate(run_dir: Path, **verdicts: list[bool]) -> Path:
    """Write a run that has evaluated each task so often."""
    with RunStore.create(run_dir, CONFIG) as store:
        for group, (task, solved) in enumerate(verdicts.items()):
            for member, verdict in enumerate(solved):
                name = f"eval-000003-{group:03}-{member:02}"
                store.put_rollout(a_rollout(name, task_id=task, solved=verdict))
        store.finish_evaluation(3, {"solve_rate": 0.5, "tasks": len(verdicts)})
    return run_dir


def test_flips_are_named_with_both_counts_and_an_example(tmp_path: Path) -> None:
    before = evaluate(tmp_path / "a", kept=[True], lost=[True, True, False], won=[False, False])
    after = evaluate(
        tmp_path / "b", kept=[True], lost=[True, False, False], won=[True, True, False]
    )
    with RunStore.open(after) as store:
        store.put_rollout(a_rollout("eval-000000-002-00", task_id="won", solved=False))
    found = read_against(after, before)
    assert found.pair is not None
    assert (found.label, found.pair.tasks) == ("a", 3)
    # an example has the verdict by which the task is in its list
    lost = {"task": "lost", "theirs": (3, 2), "ours": (3, 1), "example": "eval-000003-001-02"}
    won = {"task": "won", "theirs": (2, 0), "ours": (3, 2), "example": "eval-000003-002-01"}
    assert (found.lost, found.gained) == ([lost], [won])


def test_runs_without_a_common_task_have_no_pair(tmp_path: Path) -> None:
    before, after = evaluate(tmp_path / "a", x=[True]), evaluate(tmp_path / "b", y=[True])
    assert read_against(after, before).pair is None


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    before = evaluate(tmp_path / "old" / "run", x=[True])
    after = evaluate(tmp_path / "new" / "run", x=[True])
    assert read_against(after, before).label == str(before)
