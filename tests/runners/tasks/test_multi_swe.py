"""Multi-SWE's logs are read by the package's own parsers, in a process of their own."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from runners.tasks.contract import ScriptGrading, Task, VerdictKind
from runners.tasks.grading.graders.eval_script import ScriptRun
from runners.tasks.grading.graders.parsers import judge_run
from runners.tasks.package_logs import MULTI_SWE
from tests.runners.tasks.example_repositories import make_task

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        importlib.util.find_spec(MULTI_SWE) is None, reason="multi-swe-bench is missing"
    ),
]
REQUEST = json.dumps({"org": "cli", "repo": "cli", "number": 1, "tag": "", "number_interval": ""})


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return replace(
        make_task(tmp_path),
        fail_to_pass=("TestAdd",),
        pass_to_pass=("TestSub",),
        grading=ScriptGrading("multi_swe", "bash /home/test-run.sh", "/home/cli", REQUEST),
    )


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        (b"--- PASS: TestAdd (0.0s)\n--- PASS: TestSub (0.0s)\n", VerdictKind.SOLVED),
        (b"--- FAIL: TestAdd (0.0s)\n--- PASS: TestSub (0.0s)\n", VerdictKind.UNSOLVED),
        (b"--- PASS: TestAdd (0.0s)\n", VerdictKind.UNSOLVED),
        (b"\xff\x00", VerdictKind.UNSOLVED),
    ],
)
def test_the_packages_reading_decides(task: Task, log: bytes, kind: VerdictKind) -> None:
    assert judge_run(task, ScriptRun(started=True, log=log)).kind is kind
