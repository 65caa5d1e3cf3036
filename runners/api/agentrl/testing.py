"""Conformance suites for plug-ins: a test class for each, run by pytest (docs/extending.md).

pytest is no dependency of agentrl: ``pip install 'agentrl[testing]'``.
"""

from __future__ import annotations

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "agentrl.testing needs pytest: pip install 'agentrl[testing]'", name="pytest"
    ) from error

# Before the suites are imported: their assertions then show the values that they compare.
pytest.register_assert_rewrite("runners.testing")

from runners.testing.completions import call, say  # noqa: E402
from runners.testing.grader_conformance import GraderConformance  # noqa: E402
from runners.testing.harness_conformance import HarnessConformance  # noqa: E402
from runners.testing.number_conformance import (  # noqa: E402
    AdvantageConformance,
    RewardConformance,
)
from runners.testing.reader_conformance import ReaderConformance  # noqa: E402
from runners.testing.sandbox_conformance import SandboxConformance  # noqa: E402

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
