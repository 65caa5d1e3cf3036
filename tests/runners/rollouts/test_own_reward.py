"""The reward of a plug-in: paid as it says, and no end of a run where it fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from conf.compose import compose
from runners.records.outcome import OutcomeCode, Stage
from runners.rollouts.reward import make_reward
from runners.tasks.contract import Task
from tests.runners.rollouts.world import World, world

SOURCE = """
import time

def brief(result, *, per_token: float = 0.01):
    return float(result.verdict.kind == "solved") - per_token * result.summary.usage.sampled_tokens

async def later(result):
    return len(result.summary.final_message)

def raises(result): raise KeyError(result.summary.final_message)
def endless(result): return float("nan")
def slow(result): time.sleep(20)
"""


def use(here: World, file: Path, name: str, grade_s: float = 5.0) -> None:
    file.write_text(SOURCE)
    config = compose(["reward=custom", f"reward.target={file}:{name}"])
    deadlines = here.context.deadlines.model_copy(update={"grade_s": grade_s})
    here.context = replace(here.context, reward=make_reward(config.reward), deadlines=deadlines)


async def test_a_plugin_is_paid_with_what_was_on_the_wire(tmp_path: Path, task: Task) -> None:
    async with world(tmp_path, task) as here:
        use(here, tmp_path / "mine.py", "brief")
        [record] = await here.pool().run(here.specs(1))
        assert record.solved
        assert record.reward == pytest.approx(1 - 0.01 * record.sampled_tokens)
        use(here, tmp_path / "mine.py", "later")
        [_, other] = await here.pool().run(here.specs(2))
        assert other.reward == len("I am done.")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("raises", "mine.py:raises raised KeyError: 'I am done.'"),
        ("endless", "mine.py:endless returned nan, which is no finite number"),
        ("slow", "mine.py:slow took longer than 0.2 s (rollout.deadlines.grade_s)"),
    ],
)
async def test_a_plugin_that_fails_gives_no_reward_and_harms_no_other_rollout(
    tmp_path: Path, task: Task, name: str, text: str
) -> None:
    async with world(tmp_path, task) as here:
        use(here, tmp_path / "mine.py", name, grade_s=0.2)
        [record] = await here.pool(attempts=1).run(here.specs(1))
        assert (record.outcome.code, record.outcome.stage) == (
            OutcomeCode.GRADER_ERROR,
            Stage.GRADE,
        )
        assert text in record.outcome.message
        assert (record.reward, record.solved) == (None, None)
        assert record.patch, "the agent's work is kept, and can be graded again"
        await asyncio.sleep(0)
