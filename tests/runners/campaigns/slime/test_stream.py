"""``run.overlap=stream`` as slime's asynchronous loop calls it, with real gateway, sandboxes and
grader.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentrl.testing.completions import Completion
from runners.rollouts.pool import BreakerOpen
from tests.fakes.slime_jobs import SAYS, Job, running_job, write_model
from tests.fakes.slime_rollout import Generated, install_fake_modules

pytestmark = pytest.mark.integration

in_one_loop = pytest.mark.asyncio(loop_scope="module")
STREAM = (
    *("run.overlap=stream", "run.staleness=2", "run.window=1", "run.steps=4", "run.eval_tasks=0"),
    *("trainer.correction.truncate=token", "rollout.spare_groups=0"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", autouse=True)
def _slime() -> None:
    install_fake_modules()


def names(groups: list[list[Generated]]) -> set[str]:
    """Return the rollouts of a batch."""
    return {made.metadata["agentrl"]["rollout"] for group in groups for (made,) in group}


def update(job: Job, version: int) -> None:
    """Load new weights as slime does: what is generated is aborted, then the version changes."""
    job.engine._abort({"abort_all": True})
    job.engine.weight_version = str(version)


async def make_loop(job: Job, first: int, last: int) -> list[list[list[Generated]]]:
    """Call our functions in the order of ``train_async.py`` and return the batches: each is asked
    for while the one before is trained, and weights are loaded when both are done.
    """
    found = []
    for step in range(first, last + 1):
        found.append(await job.roll_out(step))
        await asyncio.to_thread(job.hand_over, found[-1])
        update(job, step)
    return found


@in_one_loop
async def test_batches_are_whole_groups_go_on_between_them_and_nothing_is_trained_twice(
    tmp_path: Path, model: Path
) -> None:
    async with running_job(tmp_path / "run", model, *STREAM) as job:
        first = await job.roll_out(1)
        await asyncio.to_thread(job.hand_over, first)
        asked = {request["rid"].split("-a")[0] for request in job.engine.seen.requests}
        assert any(rid.startswith("train-000002") for rid in asked), "of the window"
        assert len(first) == 2
        batches = [first, *(await make_loop(job, 2, 4))]
        trained = [name for groups in batches for name in names(groups)]
        assert sorted(trained) == sorted(
            f"train-{step:06}-{group:03}-{member:02}"
            for step in range(1, 5)
            for group in range(2)
            for member in range(2)
        )
        await job.close()
        with job.store() as store:
            kinds = [kind for kind, _ in store.schedule()]
            steps = {row.step: row for row in store.steps()}
        assert (kinds.count("admit"), kinds.count("batch"), kinds.count("switch")) == (8, 4, 3)
        assert [row.state for row in steps.values()] == ["done"] * 4
        ages = [row.metrics["policy/staleness_max"] for row in steps.values()]
        assert max(ages) <= 3, "the local trainer's limits, and slime's batch ahead"


@in_one_loop
async def test_a_slow_group_is_overtaken_and_then_trained(tmp_path: Path, model: Path) -> None:
    async with running_job(tmp_path / "run", model, *STREAM) as job:
        job.engine.say(*[Completion(SAYS, delay_s=8.0)])
        first = await job.roll_out(1)
        slow = (
            {"train-000001-000-00", "train-000001-000-01"},
            {
                "train-000001-001-00",
                "train-000001-001-01",
            },
        )
        assert any(not names(first) & group for group in slow), "one group is not in it"
        rest = set().union(*(names(batch) for batch in await make_loop(job, 2, 4)))
        assert all(group <= names(first) | rest for group in slow)


@in_one_loop
async def test_a_stream_that_is_stopped_continues_behind_its_checkpoint(
    tmp_path: Path, model: Path
) -> None:
    async with running_job(tmp_path / "run", model, *STREAM) as job:
        one, two = await job.roll_out(1), await job.roll_out(2)
        await asyncio.to_thread(job.hand_over, two)
        await job.close()
        job.first_rollout = 1  # the checkpoint after step 1
        job.engine.weight_version = "1"  # slime counts anew
        again = await job.roll_out(2)
        later = await job.roll_out(3)
        assert not names(one) & (names(again) | names(later))
        assert not names(again) & names(later)
        assert names(again) == names(two), "those that were in flight at the checkpoint"
        for group in later:
            for (made,) in group:
                assert set(made.weight_versions) <= {"0", "1"}, "counted over both executions"
        with job.store() as store:
            batches = [body["number"] for kind, body in store.schedule() if kind == "batch"]
        assert batches == [1, 2, 3]


@in_one_loop
async def test_a_failure_between_two_batches_ends_the_next_one(tmp_path: Path, model: Path) -> None:
    async with running_job(tmp_path / "run", model, *STREAM, "rollout.breaker=1") as job:
        await job.roll_out(1)
        job.engine.always = None
        with pytest.raises(BreakerOpen):
            await make_loop(job, 2, 4)
