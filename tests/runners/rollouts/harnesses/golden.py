"""Comparison of a program's command line and environment with a golden file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from conf.sections.scenario import (
    CompactScenarioConfig,
    LinearScenarioConfig,
    MixedScenarioConfig,
    ScenarioConfig,
    SubagentScenarioConfig,
)

GOLDEN = Path(__file__).parent / "golden"
SCENARIOS: dict[str, ScenarioConfig] = {
    "linear": LinearScenarioConfig(kind="linear"),
    "subagent": SubagentScenarioConfig(kind="subagent"),
    "compact": CompactScenarioConfig(kind="compact", window_tokens=30_000),
    "mixed": MixedScenarioConfig(kind="mixed", window_tokens=30_000),
}


def check_golden(
    name: str, argv: list[str], env: Mapping[str, str], request: pytest.FixtureRequest
) -> None:
    """Compare a command line and an environment with the golden file, or rewrite the file."""
    file = GOLDEN / f"{name}.json"
    text = json.dumps({"argv": argv, "env": dict(env)}, indent=2) + "\n"
    if request.config.getoption("--update-golden"):
        file.write_text(text, "utf-8")
    assert file.read_text("utf-8") == text
