"""Jobs of a command's words, before anything is started."""

from __future__ import annotations

import pytest

from cli.jobs import new_jobs
from conf.errors import ConfigError


@pytest.mark.parametrize("word", ["eval.tasks=3", "eval={tasks: 3}", "eval.ids=a,b"])
def test_keys_of_evaluations_alone_are_refused_by_a_campaign(word: str) -> None:
    """They would be accepted and ignored: what a campaign evaluates is in ``run``."""
    with pytest.raises(
        ConfigError, match=r"^eval(\.\w+)? is of `agentrl eval` alone: leave it out"
    ):
        new_jobs([word, "run.steps=1"])
    assert new_jobs([word.replace(",b", "")], kind="eval-bugfix")
