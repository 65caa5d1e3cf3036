"""The effect of replay with an engine that differs from training: the embedded one, rounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runners.engines.embedded.rounding import Precision
from tests.benchmarks.bench_routing import compare, random_policy, random_prompts, sample_rollouts


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy in which experts matter."""
    return random_policy(tmp_path_factory.mktemp("policy"))


def mismatch(policy: Path, precision: Precision) -> dict[str, float]:
    """Return training's mismatch with what such an engine samples."""
    return compare(policy, sample_rollouts(policy, random_prompts(24), precision, new_tokens=48))


def test_an_engine_with_training_s_own_weights_has_no_mismatch(policy: Path) -> None:
    found = mismatch(policy, Precision())
    assert found["k3"] < 1e-10
    assert found["k3_native"] < 1e-10
    assert found["disagree_slot"] == 0.0
    assert found["captured"] == found["replayed"] == 1.0


@pytest.mark.parametrize(
    ("precision", "k3"),
    [
        (Precision("bfloat16"), 1.5),
        (Precision("int8"), 2.0),
        (Precision(router_noise=0.01), 4.0),
    ],
    ids=["bf16", "int8", "router noise"],
)
def test_replay_removes_the_part_of_the_mismatch_that_routing_causes(
    policy: Path, precision: Precision, k3: float
) -> None:
    found = mismatch(policy, precision)
    assert found["disagree_slot"] > 0.0
    assert found["k3_native"] > k3 * found["k3"]
    assert found["p999_abs_native"] > 2.0 * found["p999_abs"]
    assert found["F_1.1"] <= found["F_1.1_native"]
    assert np.isclose(found["routing_share"], 1 - found["k3"] / found["k3_native"])
