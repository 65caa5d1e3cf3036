"""A whole campaign with failures: an untrainable group is replaced, and the run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runners.campaigns.conftest import Miniature

pytestmark = pytest.mark.integration

PLAN = """
seed: 0
rules:
  - {where: sandbox_boot, when: {rollouts: "train-000001-00[01]-*"}, what: error}
  - {where: dump, when: {rollouts: "step-000001"}, what: exception}
"""


def test_a_group_that_fails_is_replaced_and_unwritten_metrics_are_written_later(
    miniature: Miniature, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    sampler = tmp_path / "sampler.py"
    sampler.write_text("def first(draw): return [t.task.id for t in draw.tasks][: draw.count]\n")
    document = miniature.finish(
        miniature.begin(
            "faults=file", f"faults.path={plan}", "run.steps=1", "run.eval_tasks=0",
            "rollout.attempts=1", "rollout.spare_groups=3", f"run.sampler={sampler}:first",
        )
    )  # fmt: skip
    assert document["outcomes"]["infra.sandbox_start"] == 8
    with miniature.store() as store:
        records = store.rollouts(counts=True)
        assert {record.group for record in records} == {0, 1, 2, 3}, "two spares were enough"
        tasks = {record.group: record.task_id for record in records}
        assert len(set(tasks.values())) == 4
        assert all(record.reward is None for record in records if record.group < 2)
        assert all(record.reward is not None for record in records if record.group > 1)
        assert len(store.events("metrics_failed")) == 1
    [line] = (miniature.run_dir / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line)
    assert (metrics["rollout/groups"], metrics["rollout/groups_dropped"]) == (4, 2)
    assert metrics["rollout/ungraded"] == 8
