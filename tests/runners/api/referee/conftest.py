"""The vocabulary that ships with agentrl, and the referee's scenarios."""

from __future__ import annotations

import pytest

from agentrl.referee.policy import Vocabulary
from agentrl.referee.program import Scenario, load_scenarios
from runners.records.checkpoints import SHIPPED


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary(SHIPPED)


@pytest.fixture(scope="session")
def scenarios() -> dict[str, Scenario]:
    return load_scenarios()
