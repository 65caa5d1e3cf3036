"""Conformance suites for plug-ins: a test class for each, run by pytest (docs/extending.md).

pytest is no dependency of agentrl: ``pip install 'agentrl[testing]'``.
"""

from __future__ import annotations

import sys

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "agentrl.testing needs pytest: pip install 'agentrl[testing]'", name="pytest"
    ) from error

if "runners.testing" not in sys.modules:  # their assertions then show the values that they compare
    pytest.register_assert_rewrite("runners.testing")

from runners.testing.completions import call, say
from runners.testing.grader_conformance import GraderConformance
from runners.testing.harness_conformance import HarnessConformance
from runners.testing.number_conformance import (
    AdvantageConformance,
    RewardConformance,
)
from runners.testing.reader_conformance import ReaderConformance
from runners.testing.sandbox_conformance import SandboxConformance

__all__ = [
    "AdvantageConformance",
    "GraderConformance",
    "HarnessConformance",
    "ReaderConformance",
    "RewardConformance",
    "SandboxConformance",
    "call",
    "say",
]
