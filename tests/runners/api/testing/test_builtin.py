"""Our own agent, graders, reward and advantage keep the contracts that plug-ins keep."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from agentrl.testing import (
    AdvantageConformance,
    GraderConformance,
    HarnessConformance,
    RewardConformance,
    call,
)
from agentrl.testing.grader_conformance import Files
from runners.tasks.contract import Grading, ScriptGrading, Task, UnittestIds

TEST = """
import unittest
from calc import add

class TestAdd(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(add(2, 3), 5)
"""


@pytest.mark.integration
class TestNativeHarness(HarnessConformance):
    target = "native"
    replies = (
        call("Bash", command="cp a.py b.py && cat b.py"),
        call("Read", path="b.py"),
        call("Submit", message="done"),
    )


@pytest.mark.integration
class TestUnittestGrader(GraderConformance):
    repository: ClassVar[Files] = {
        "calc.py": "def add(a, b):\n    return a - b\n",
        "test_calc.py": TEST,
    }
    honest: ClassVar[Files] = {"calc.py": "def add(a, b):\n    return a + b\n"}
    broken: ClassVar[Files] = {"calc.py": "def add(a, b):\n    return a * b\n"}
    cheats: ClassVar[dict[str, Files]] = {
        "an edited test": {"test_calc.py": TEST.replace("5", "-1")},
        "a printed claim": {"calc.py": "print('OK'); raise SystemExit(0)\n"},
    }
    grading: ClassVar[Grading] = UnittestIds()
    tests: ClassVar[tuple[str, ...]] = ("test_calc.TestAdd.test_sum",)

    def make_task(self, repo: Path, commit: str) -> Task:
        return Task(
            id="add",
            split="train",
            repo=repo,
            base_commit=commit,
            problem_statement="Fix add.",
            fail_to_pass=self.tests,
            pass_to_pass=(),
            protected=("test_calc.py",),
            gold_patch="",
            kind="operator",
            grading=self.grading,
        )


class TestCommandGrader(TestUnittestGrader):
    grading = ScriptGrading("eval_cmd", "python -m unittest test_calc", "/testbed")
    tests = ()


class TestVerdictReward(RewardConformance):
    target = "tests"


class TestGrpo(AdvantageConformance):
    target = "grpo"
