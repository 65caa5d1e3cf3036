"""A job whose parts are killed loses no rollout and trains none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.slime_torture import torture

pytestmark = pytest.mark.integration
pytest.importorskip("ray", reason="the extra agentrl-campaigns[ray] is not installed")


def test_a_gateway_and_a_node_that_are_killed_cost_no_rollout(tmp_path: Path) -> None:
    """Of the sweep below; ``python -m tests.runners.campaigns.slime.torture`` takes slime."""
    check(tmp_path, "gateway", "node")


@pytest.mark.slow
def test_whatever_is_killed_no_rollout_is_lost_or_trained_twice(tmp_path: Path) -> None:
    check(tmp_path, "manager", "gateway", "engine", "worker", "node")


def check(root: Path, *victims: str) -> None:
    with torture(root, steps=len(victims) + 1) as job:
        fate = job.judge(job.run(victims))
    assert tuple(job.killed) == victims
    assert (fate.lost, fate.duplicated, fate.repeated) == ([], [], [])
    restarts = sum(victim in ("manager", "gateway") for victim in victims)
    assert fate.executions == 1 + restarts, "nothing else ends the job"
