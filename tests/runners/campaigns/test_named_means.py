"""Means of figures that rollouts bring under names of their own."""

from __future__ import annotations

import pytest

from runners.campaigns.named_means import MOST_NAMES, NAME_CHARS, means_by_name


def test_a_mean_is_over_the_rollouts_that_have_the_name() -> None:
    found = means_by_name("verifier", [{"a": 1.0, "b": 0.5}, {"a": 0.0}, {}])
    assert found == {"verifier/a": 0.5, "verifier/b": 0.5}


def test_means_of_summands_add_up_to_the_mean_of_the_sums() -> None:
    parts = [{"tests": 1.0, "turn_penalty": -0.2}, {"tests": 0.0}, {}]
    found = means_by_name("reward", parts, summands=True)
    assert sum(found.values()) == pytest.approx(0.8 / 3)


def test_a_policy_that_writes_names_floods_nothing() -> None:
    own = {f"x{number}": 1.0 for number in range(5000)} | {"a\nb\x1b" + "z" * 5000: 1.0}
    found = means_by_name("verifier", [{"reward": 1.0}, {"reward": 0.0} | own])
    assert len(found) == MOST_NAMES
    assert found["verifier/reward"] == 0.5
    assert all(name.isprintable() and len(name) <= NAME_CHARS + 9 for name in found)
    (only,) = means_by_name("v", [{"a\nb\x1b": 1.0}])
    assert only == "v/a_b\ufffd"
