"""The cost of failures of the infrastructure in a slime job: the attempts that fail, no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.campaigns.slime.rewards import KEY
from tests.fakes.slime_jobs import running_job, write_model
from tests.fakes.slime_rollout import install_fake_modules

pytestmark = pytest.mark.slow
GROUPS, MEMBERS = 8, 8
RATE = 0.05
PLAN = f"""
seed: 3
rules:
  - {{where: sandbox_boot, when: {{probability: {RATE / 2}}}, what: error}}
  - {{where: grade, when: {{probability: {RATE / 2}}}, what: error}}
"""


@pytest.mark.asyncio
async def test_at_five_percent_failures_at_most_six_percent_of_the_rollouts_are_wasted(
    tmp_path: Path,
) -> None:
    """A job that dropped the group of each would waste a third: 1 − 0.95⁸ = 34 %."""
    install_fake_modules()
    (tmp_path / "plan.yaml").write_text(PLAN)
    size = (
        *("run.steps=2", f"run.tasks_per_step={GROUPS}", f"run.rollouts_per_task={MEMBERS}"),
        *(f"task.train_tasks={GROUPS}", "rollout.attempts=3", "run.eval_tasks=0"),
        *("faults=file", f"faults.path={tmp_path / 'plan.yaml'}", "rollout.concurrency=8"),
    )
    async with running_job(tmp_path / "run", write_model(tmp_path / "model"), *size) as job:
        batches = [await job.roll_out(step) for step in (1, 2)]
        with job.store() as store:
            attempts, faults = store.rollouts(split="train"), store.events("fault")
    samples = [made[0] for groups in batches for group in groups for made in group]
    assert all(made.metadata[KEY]["graded"] for made in samples), "no group lacks a rollout"
    handed = {made.metadata[KEY]["session"] for made in samples}
    assert len(handed) == len(samples) == 2 * GROUPS * MEMBERS
    wasted = [record for record in attempts if record.session_id not in handed]
    assert all(record.reward is None for record in wasted)
    assert len(wasted) == len(faults), "each fault costs its attempt"
    print(f"{len(wasted)} of {len(attempts)} attempts, {len(faults)} faults")
    assert RATE / 2 < len(faults) / len(attempts) < 0.06, "another seed: the plan is not 5 %"
    assert len(wasted) / len(attempts) <= 0.06
