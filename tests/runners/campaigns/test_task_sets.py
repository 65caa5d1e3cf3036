"""A whole campaign on two training sets, measured on a third with two attempts per task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conf.compose import compose
from runners.campaigns.schedule import step_tasks
from runners.records.checkpoints import BEST, CHECKPOINTS
from runners.tasks.sets.task_sets import load_tasks
from tests.runners.campaigns.conftest import Miniature
from tests.runners.tasks.example_repositories import make_task

pytestmark = pytest.mark.integration


def write_rows(file: Path, repo: Path, count: int) -> None:
    rows = [
        {
            "instance_id": f"{file.stem}-{number}",
            "problem_statement": f"Task {number} of {file.stem}.",
            "repo_path": str(repo),
            "eval_cmd": "python3 -c 'import calc.add; assert calc.add.add(2, 3) == 5'",
        }
        for number in range(count)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_two_sets_are_trained_a_third_is_measured_and_the_best_checkpoint_is_kept(
    miniature: Miniature, tmp_path: Path
) -> None:
    repo = make_task(tmp_path).repo
    for name, count in (("a", 5), ("b", 2), ("measured", 3)):
        write_rows(tmp_path / f"{name}.jsonl", repo, count)
    lines = [
        *("model=local", f"model.path={miniature.policy}", f"model.tokenizer={miniature.policy}"),
        *("model.renderer=qwen3", "model.max_context_tokens=1024", "sampling.max_new_tokens=32"),
        *("task=mixture", "task.canaries=0", "eval_task=jsonl", "eval_task.canaries=0"),
        f"task.sets=[{{path:'{tmp_path}/a.jsonl',weight:3}},{{path:'{tmp_path}/b.jsonl',name:rare}}]",
        f"eval_task.path={tmp_path}/measured.jsonl",
        *("run.eval_tasks=2", "run.eval_attempts=2", "run.eval_every=1", "run.keep_checkpoints=1"),
        *("run.tasks_per_step=4", "run.rollouts_per_task=2", "harness.max_turns=2"),
        *("rollout.concurrency=8", "rollout.spare_groups=0"),
    ]
    miniature.finish(miniature.start(*lines, "run.steps=1", f"run.dir={miniature.run_dir}"))
    document = miniature.finish(miniature.resume("run.steps=3"))
    config = compose([*lines, "run.steps=3"])
    train = [task for task in load_tasks(config) if task.split == "train"]
    with miniature.store() as store:
        assert [row.tasks for row in store.steps()] == [
            [task.id for task in step_tasks(config, train, step)] for step in (1, 2, 3)
        ], "the resumed run goes on where an uninterrupted one would have"
        assert [row.step for row in store.evaluations()] == [0, 1, 2, 3]
        last = store.evaluations()[-1].result
        assert (last["tasks"], last["graded"]) == (2, 4)
        assert last.keys() >= {"solve_rate", "pass@2"}
        sets = [row.extra["task_set"] for row in store.rollouts(split="train", counts=True)]
        assert (sets.count("a"), sets.count("rare")) == (3 * 3 * 2, 3 * 1 * 2)
        metrics = store.steps()[-1].metrics
    assert (metrics["rollout/groups/a"], metrics["rollout/groups/rare"]) == (3, 1)
    kept = miniature.run_dir / CHECKPOINTS
    assert sorted(path.name for path in kept.iterdir()) == [BEST, "step-000001", "step-000003"]
    assert (kept / BEST).readlink() == Path("step-000001"), "all are equal: the earliest"
    assert document["best_checkpoint"]["step"] == 1
