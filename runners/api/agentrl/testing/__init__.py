"""Conformance suites for plug-ins: a test class for each, run by pytest (docs/extending.md).

pytest is no dependency of agentrl: ``pip install 'agentrl-campaigns[testing]'``.
"""

from __future__ import annotations

from pkgutil import iter_modules

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "agentrl.testing needs pytest: pip install 'agentrl-campaigns[testing]'", name="pytest"
    ) from error
else:  # before they are imported: their assertions then show the values that they compare
    pytest.register_assert_rewrite(*(f"{__name__}.{each.name}" for each in iter_modules(__path__)))

from agentrl.testing.completions import call, say
from agentrl.testing.grader_conformance import GraderConformance
from agentrl.testing.harness_conformance import HarnessConformance
from agentrl.testing.number_conformance import (
    AdvantageConformance,
    RewardConformance,
    graded,
)
from agentrl.testing.reader_conformance import ReaderConformance
from agentrl.testing.sandbox_conformance import SandboxConformance

__all__ = [
    "AdvantageConformance",
    "GraderConformance",
    "HarnessConformance",
    "ReaderConformance",
    "RewardConformance",
    "SandboxConformance",
    "call",
    "graded",
    "say",
]
