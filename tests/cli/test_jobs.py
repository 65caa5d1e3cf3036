"""Jobs of a command's words, before anything is started."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from runners.campaigns.jobs import new_jobs


@pytest.mark.parametrize("word", ["eval.tasks=3", "eval={tasks: 3}", "eval.ids=a,b"])
def test_keys_of_evaluations_alone_are_refused_by_a_campaign(word: str) -> None:
    """They would be accepted and ignored: what a campaign evaluates is in ``run``."""
    with pytest.raises(
        ConfigError, match=r"^eval(\.\w+)? is of `agentrl eval` alone: leave it out"
    ):
        new_jobs([word, "run.steps=1"])
    assert new_jobs([word.replace(",b", "")], kind="eval-bugfix")


def test_the_temperature_of_evaluations_is_refused_where_there_are_none() -> None:
    word = "sampling.eval_temperature=0"
    with pytest.raises(
        ConfigError, match=r"^sampling\.eval_temperature does nothing with run\.eval"
    ):
        new_jobs([word, "run.eval_tasks=0"])
    assert new_jobs([word, "run.eval_tasks=0,4"]), "one of the runs is evaluated"
    assert new_jobs([word, "run.eval_tasks=0"], kind="eval-bugfix")
