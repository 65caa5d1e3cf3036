"""Grading in real sandboxes: honest patches, forged patches, and infrastructure failures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.sandboxes.contract import (
    CommandResult,
    KilledError,
    Sandbox,
    SandboxError,
    SandboxSpec,
)
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.tree import copy_tree
from runners.tasks.contract import Task, Verdict, VerdictKind, make_refused_patch
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.graders.unittest_ids import read_verdict
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.workspace_diff import diff_workspace
from runners.tasks.repositories.task_repositories import use_repository_as_is
from tests.runners.tasks.example_repositories import FIX, make_task, patch_of, result_of

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task(tmp_path_factory.mktemp("task"))


class CountingBackend:
    """A backend that counts its sandboxes; the first ``failures`` of them fail."""

    has_images = False

    def __init__(self, backend: LocalBackend, failures: int = 0) -> None:
        self.made = 0
        self._backend = backend
        self._failures = failures

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.made += 1
        if self.made <= self._failures:
            raise SandboxError("scripted")
        return await self._backend.create(spec)

    async def build_image(self, context: Path, tag: str, *, deadline_s: float) -> None:
        await self._backend.build_image(context, tag, deadline_s=deadline_s)

    def guarantees(self) -> dict[str, str]:
        return self._backend.guarantees()

    async def reap(self, left: Mapping[str, Mapping[str, Any]]) -> None:
        await self._backend.reap(left)

    async def close(self) -> None:
        await self._backend.close()


async def grade(
    backend: LocalBackend, task: Task, tmp_path: Path, deadline_s: float = 30, **files: str
) -> Verdict:
    """Grade the work tree with some files replaced (``calc__add`` is calc/add.py)."""
    workspace = tmp_path / "workspace"
    copy_tree(task.repo, workspace)
    for name, text in files.items():
        (workspace / f"{name.replace('__', '/')}.py").write_text(text)
    patch = diff_workspace(task, workspace)
    return await SandboxGrader(backend).grade(task, patch, name="grade", deadline_s=deadline_s)


async def test_a_fix_solves(backend: LocalBackend, task: Task, tmp_path: Path) -> None:
    verdict = await grade(backend, task, tmp_path, calc__add=FIX)
    assert verdict.kind is VerdictKind.SOLVED, verdict
    assert (verdict.fail_to_pass_passed, verdict.fail_to_pass_total) == (1, 1)
    assert (verdict.pass_to_pass_passed, verdict.pass_to_pass_total) == (1, 1)
    assert verdict.reason == "all tests pass"
    assert verdict.duration_s > 0


async def test_no_change_is_tested_and_unsolved(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    verdict = await grade(backend, task, tmp_path)
    assert verdict.kind is VerdictKind.UNSOLVED
    assert verdict.reason == "1 of 1 fail-to-pass tests fail (tests.test_add.TestAdd.test_sum)"
    assert verdict.pass_to_pass_passed == 1
    assert "AssertionError: -1 != 5" in verdict.log


async def test_an_empty_patch_solves_a_task_without_failing_tests(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    done = replace(task, fail_to_pass=task.pass_to_pass, pass_to_pass=())
    assert (await grade(backend, done, tmp_path)).kind is VerdictKind.SOLVED


async def test_a_fix_that_breaks_another_test_is_unsolved(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    verdict = await grade(backend, task, tmp_path, calc__add="def add(a, b):\n    return 5\n")
    assert verdict.kind is VerdictKind.UNSOLVED
    assert verdict.reason == "1 of 1 pass-to-pass tests fail (tests.test_add.TestAdd.test_zero)"


WRONG = "def add(a, b):\n    return a - b\n"
FORGERIES = {
    "exit at import": "import os\nos._exit(0)\n",
    "exit in the call": "import os\ndef add(a, b):\n    os._exit(0)\n",
    "SystemExit at import": "import sys\nsys.exit(0)\n",
    "SystemExit in the call": "import sys\ndef add(a, b):\n    sys.exit(0)\n",
    "KeyboardInterrupt": "def add(a, b):\n    raise KeyboardInterrupt\n",
    "skip": "import unittest\ndef add(a, b):\n    raise unittest.SkipTest('x')\n",
    "printed results": WRONG + "import os\nfor fd in range(1, 60):\n"
    "    for index in range(2):\n"
    "        try: os.write(fd, b'\\n%s %d pass\\n' % (b'0' * 32, index))\n"
    "        except OSError: pass\n",
    "results printed to the parent": WRONG + "import os\n"
    "for fd in os.listdir(f'/proc/{os.getppid()}/fd'):\n"
    "    try:\n"
    "        with open(f'/proc/{os.getppid()}/fd/{fd}', 'w') as out: out.write('x 0 pass\\n')\n"
    "    except OSError: pass\n",
    "no assertions": WRONG
    + "import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None\n",
    "assertions of other code": WRONG + "import unittest\n"
    "unittest.TestCase.assertEqual.__code__ = (lambda self, a, b, msg=None: None).__code__\n",
    "no failures": WRONG
    + "import unittest\nunittest.TestResult.wasSuccessful = lambda self: True\n"
    "unittest.TestResult.addFailure = lambda self, test, error: self.addSuccess(test)\n",
    "another run": WRONG + "import unittest\ndef run(self, result=None):\n"
    "    result.startTest(self); result.addSuccess(self); result.stopTest(self)\n"
    "unittest.TestCase.run = run\n",
    "another test": WRONG + "import sys, types, unittest\n"
    "class TestAdd(unittest.TestCase):\n"
    "    def test_sum(self): pass\n"
    "    test_zero = test_sum\n"
    "fake = types.ModuleType('tests.test_add')\n"
    "fake.TestAdd = TestAdd\n"
    "sys.modules['tests.test_add'] = fake\n"
    "import tests\n"
    "tests.test_add = fake\n",
    "another write": WRONG + "import os\nreal = os.write\n"
    "os.write = lambda fd, data: real(fd, data.replace(b'fail', b'pass'))\n",
    "the parent killed": WRONG + "import os\nos.kill(os.getppid(), 9)\n",
    "everything killed": WRONG + "import os\nos.kill(-1, 9)\n",
    "descriptors closed": WRONG + "import os\nos.closerange(0, 100)\n",
    "a daemon that holds the pipe": WRONG + "import os, time\n"
    "if os.fork() == 0:\n    os.setsid(); time.sleep(100); os._exit(0)\n"
    "os._exit(0)\n",
    "out of memory": "x = bytearray(1 << 30)\n",
    "a flood": WRONG + "import os\nfor _ in range(100): os.write(1, b'x' * 100000)\n",
}


@pytest.mark.parametrize("how", FORGERIES)
async def test_a_forgery_does_not_solve(
    backend: LocalBackend, task: Task, tmp_path: Path, how: str
) -> None:
    verdict = await grade(backend, task, tmp_path, calc__add=FORGERIES[how])
    assert verdict.kind is VerdictKind.UNSOLVED, verdict
    assert not verdict.timed_out


def with_reference(task: Task, tmp_path: Path) -> Task:
    """Return the task with its reference patch."""
    workspace = tmp_path / "fixed"
    copy_tree(task.repo, workspace)
    (workspace / "calc/add.py").write_text(FIX)
    return replace(task, gold_patch=diff_workspace(task, workspace).diff.decode())


async def test_a_loop_is_unsolved_at_the_deadline_and_keeps_what_passed(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    loops = "def add(a, b):\n    while b == 0:\n        pass\n    return a + b\n"
    task = with_reference(task, tmp_path)  # a busy machine is told by it from a patch that waits
    verdict = await grade(backend, task, tmp_path, deadline_s=6, calc__add=loops)
    assert verdict.kind is VerdictKind.UNSOLVED, verdict
    if "had a processor for" in verdict.reason:
        return  # twice, on a busy machine that had time for the reference patch in between
    assert verdict.timed_out
    assert verdict.fail_to_pass_passed == 1
    assert verdict.reason == "the tests did not end within 6 s"


async def test_a_patch_that_waits_as_if_for_a_disk_is_unsolved(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    waits = (
        "import os\nos.mkfifo('/tmp/fifo')\n"
        "os.posix_spawn('/bin/true', ['true'], {},\n"
        "    file_actions=[(os.POSIX_SPAWN_OPEN, 0, '/tmp/fifo', os.O_RDONLY, 0)])\n"
    )
    task = with_reference(task, tmp_path)
    verdict = await grade(backend, task, tmp_path, deadline_s=6, calc__add=waits)
    assert verdict.kind is VerdictKind.UNSOLVED, verdict
    assert "had a processor for 0." in verdict.reason, "it slept without one, on an idle machine"


async def test_a_patch_that_does_not_apply_is_unsolved(backend: LocalBackend, task: Task) -> None:
    for diff in (
        b"diff --git a/none b/none\n--- a/none\n+++ b/none\n@@ -1 +1 @@\n-x\n+y\n",
        b"nonsense\n",
        b"diff --git a/../x b/../x\nnew file mode 100644\n"
        b"--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+y\n",
        b"diff --git a/.git/x b/.git/x\nnew file mode 100644\n"
        b"--- /dev/null\n+++ b/.git/x\n@@ -0,0 +1 @@\n+y\n",
    ):
        verdict = await SandboxGrader(backend).grade(task, patch_of(diff), name="g", deadline_s=30)
        assert verdict.kind is VerdictKind.UNSOLVED
        assert verdict.reason.startswith("patch does not apply: ")
        assert verdict.log


async def test_a_refused_patch_is_unsolved_for_its_reason(
    backend: LocalBackend, task: Task
) -> None:
    patch = make_refused_patch("too large")
    verdict = await SandboxGrader(backend).grade(task, patch, name="g", deadline_s=30)
    assert (verdict.kind, verdict.reason) == (VerdictKind.UNSOLVED, "too large")


async def test_the_same_patch_is_graded_once(backend: LocalBackend, task: Task) -> None:
    counting = CountingBackend(backend)
    grader = TaskGrader(SandboxGrader(counting), use_repository_as_is)
    verdicts = await asyncio.gather(
        *(grader.grade(task, result_of(b""), name=f"g{n}", deadline_s=30) for n in range(5))
    )
    assert counting.made == 1
    assert len({verdict.reason for verdict in verdicts}) == 1
    other = replace(task, id="other")
    await grader.grade(other, result_of(b""), name="g", deadline_s=30)
    assert counting.made == 2


async def test_an_infrastructure_failure_is_infra_and_not_cached(
    backend: LocalBackend, task: Task
) -> None:
    counting = CountingBackend(backend, failures=1)
    grader = TaskGrader(SandboxGrader(counting), use_repository_as_is)
    first, second = await asyncio.gather(
        *(grader.grade(task, result_of(b""), name=f"g{n}", deadline_s=30) for n in range(2))
    )
    assert first.kind is VerdictKind.INFRA
    assert "scripted" in first.reason
    assert second.kind is VerdictKind.UNSOLVED


def test_a_test_runner_that_did_not_start_is_infra(task: Task) -> None:
    dead = CommandResult(1, b"", b"python: cannot start", 0.1)
    verdict = read_verdict(task, "nonce", dead)
    assert verdict.kind is VerdictKind.INFRA
    assert "exit code 1" in verdict.reason


def test_lines_without_the_nonce_are_ignored(task: Task) -> None:
    output = b"nonce start\nnonce 1 pass\nother 0 pass\nnonce 0 fail\nnonce end\n"
    verdict = read_verdict(task, "nonce", CommandResult(0, output, b"", 0.1))
    assert (verdict.fail_to_pass_passed, verdict.pass_to_pass_passed) == (0, 1)
    assert [test.result for test in verdict.tests] == ["failed", "passed"]


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("nonce fault TestCase.run was replaced\n", "TestCase.run was replaced"),
        ("nonce end\n", "all tests pass"),
    ],
)
def test_results_without_the_runner_s_word_at_the_end_solve_nothing(
    task: Task, last: str, reason: str
) -> None:
    output = f"nonce start\nnonce 0 pass\nnonce 1 pass\n{last}".encode()
    verdict = read_verdict(task, "nonce", CommandResult(0, output, b"", 0.1))
    assert verdict.reason == reason
    assert (verdict.kind is VerdictKind.SOLVED) == (reason == "all tests pass")


def test_a_runner_that_did_not_reach_its_end_was_ended(task: Task) -> None:
    output = b"nonce start\nnonce 0 pass\nnonce 1 pass\nother end\n"
    with pytest.raises(KilledError, match="did not reach its end"):
        read_verdict(task, "nonce", CommandResult(0, output, b"", 0.1))
