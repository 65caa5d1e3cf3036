"""Advantages and shares of plug-ins: used as they are, and harmless where they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.compose import compose
from conf.schema import Config
from runners.training.advantages import StepGroups
from runners.training.step_samples import compute_shares
from tests.fakes.records import a_rollout

SOURCE = """
def rloo(rewards):
    if 9.0 in rewards:
        raise ArithmeticError("nine")
    total, others = sum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]

def short(rewards): return rewards[1:]
def exits(rewards): raise SystemExit(3)
def endless(rewards): return [float("inf")] * len(rewards)

def halves(segments, *, last: float = 0.5): return [last] * len(segments)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "signal.py"
    place.write_text(SOURCE)
    return place


def groups(config: Config, *rewards: list[float | None]) -> StepGroups:
    records = [
        a_rollout(f"train-000001-{group:02}-{member:02}", group=group, reward=reward)
        for group, members in enumerate(rewards)
        for member, reward in enumerate(members)
    ]
    return StepGroups(config, records)


def test_a_plugin_computes_the_advantages_of_the_graded_members(file: Path) -> None:
    config = compose([f"trainer.advantage={file}:rloo"])
    found = groups(config, [1.0, None, 0.0, 0.0], [1.0, None])
    assert [advantage for _, advantage in found.advantages] == [1.0, None, -0.5, -0.5, None, None]
    assert found.without_baseline == [1], "below trainer.min_group it is not even asked"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rloo", "trainer.advantage raised ArithmeticError: nine"),
        ("exits", "trainer.advantage raised SystemExit: 3"),
        ("short", "trainer.advantage returned 1 values for 2 rewards"),
        ("endless", "trainer.advantage returned inf, which is no finite number"),
    ],
)
def test_a_group_whose_advantages_fail_is_not_trained_and_harms_no_other(
    file: Path, name: str, reason: str
) -> None:
    found = groups(compose([f"trainer.advantage={file}:{name}"]), [9.0, 0.0], [1.0, 0.0])
    assert [advantage for _, advantage in found.advantages[:2]] == [None, None]
    assert found.failed[1, 0].startswith(reason)
    assert found.untrainable >= 1
    if name == "rloo":
        assert [advantage for _, advantage in found.advantages[2:]] == [1.0, -1.0]


def test_a_plugin_shares_the_advantage_among_segments(file: Path) -> None:
    config = compose([f"fanout.reward={{target: '{file}:halves', options: {{last: 0.25}}}}"])
    assert config.fanout.kind == "segments"
    assert compute_shares([], config.fanout.reward) == []
