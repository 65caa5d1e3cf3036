"""Plans of weights: written of recorded turns, found again by rollout and prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runners.engines.contract import EngineError
from runners.engines.embedded.weight_plan import WeightPlan, write_plans
from runners.records.record import IdArray

ROLLOUT = "train-000001-000-00"


def ids(*values: int) -> IdArray:
    return np.array(values, np.int32)


def test_a_request_gets_the_versions_of_its_turn_whatever_its_attempt(tmp_path: Path) -> None:
    versions = [ids(3, 3, 4), ids(5), ids(6, 6)]
    prompts = [ids(1, 2), ids(1, 2, 9), ids(1, 2)]
    write_plans(tmp_path / "plan.json", zip([ROLLOUT] * 3, prompts, versions, strict=True))
    plan = WeightPlan.read(tmp_path / "plan.json")

    def take(prompt: IdArray, session: str = f"{ROLLOUT}-a2") -> list[int] | None:
        found = plan.take(f"{session}:main:0-001", prompt)
        return None if found is None else found.tolist()

    assert take(prompts[0]) == [3, 3, 4]
    assert take(prompts[1]) == [5]
    assert take(prompts[2]) == [6, 6], "the second request with this prompt"
    assert take(prompts[2]) == [6, 6], "again, after a failure"
    assert take(ids(7)) is take(prompts[0], "eval-000001-000-00-a0") is take(ids(1), "x") is None


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"plan\.json"):
        WeightPlan.read(tmp_path / "plan.json")
