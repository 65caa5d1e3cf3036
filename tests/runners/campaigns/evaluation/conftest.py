"""Small real evaluations, and benchmarks of given tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.compose import compose
from conf.schema import Config
from runners.campaigns.evaluation.benchmarks import Benchmark
from runners.tasks.contract import Task
from tests.runners.campaigns.conftest import Miniature, cache, miniature, untrained_policy

__all__ = ["cache", "miniature", "untrained_policy"]


@pytest.fixture
def evaluation(miniature: Miniature) -> Miniature:
    """A miniature evaluation: `agentrl eval bugfix` on one run directory."""
    miniature.command = ("eval", "bugfix")
    return miniature


def a_task(name: str, kind: str = "operator") -> Task:
    """A task without a repository."""
    return Task(name, "held_out", Path(name), "c0ffee", "fix it", ("a",), ("b",), (), "", kind)


def a_benchmark(*tasks: Task) -> Benchmark:
    """A benchmark of these tasks."""
    return Benchmark("given", "bugfix", lambda _: list(tasks), "kind of bug")


def a_config(*overrides: str) -> Config:
    """The configuration of an evaluation."""
    return compose(["run.steps=0", *overrides])
