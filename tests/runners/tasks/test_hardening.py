"""Measures against reward hacking: each cheat solved its task before the measure was there."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from runners.sandboxes.local.backend import LocalBackend
from runners.tasks.contract import Grading, ScriptGrading, Task, VerdictKind
from runners.tasks.grading.grading import SandboxGrader
from tests.runners.tasks.cheats import ENDS, PYTEST, UNITTEST
from tests.runners.tasks.example_repositories import FIX, git, make_task, patch_of
from tests.runners.tasks.pytest_tasks import diff_of, grade, make_pytest_task, with_grading

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_pytest_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def unittest_task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task(tmp_path_factory.mktemp("unittest"))


def diff_with(repo: Path, files: dict[str, str]) -> str:
    """Return the diff that adds files by path."""
    for name, text in files.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text)
    git(repo, "add", "-A", "-f")
    diff = git(repo, "diff", "--cached", "--binary", "HEAD")
    git(repo, "reset", "-q", "--hard")
    return f"{diff}\n"


def with_script(task: Task, script: str) -> Task:
    """Return the task with another eval script."""
    assert isinstance(task.grading, ScriptGrading)
    return with_grading(task, replace(task.grading, script=script))


@pytest.mark.parametrize("how", UNITTEST)
async def test_a_cheat_does_not_please_unittest(
    backend: LocalBackend, unittest_task: Task, how: str
) -> None:
    diff = diff_of(unittest_task.repo, calc__add=UNITTEST[how])
    patch = patch_of(diff.encode())
    verdict = await SandboxGrader(backend).grade(unittest_task, patch, name="g", deadline_s=60)
    assert verdict.kind is VerdictKind.UNSOLVED, verdict


@pytest.mark.parametrize("how", PYTEST)
async def test_a_cheat_does_not_please_pytest(backend: LocalBackend, task: Task, how: str) -> None:
    cheat = PYTEST[how]
    if isinstance(cheat, str):
        diff = diff_of(task.repo, calc__add=cheat)
    else:
        diff = diff_with(task.repo, cheat)
    if "unittest" in how:
        name = "tests/test_add.py::TestAdd::test_sum"
        script = "cd /testbed\npython -m pytest -p no:cacheprovider tests/test_add.py\n"
        task = replace(with_script(task, script), fail_to_pass=(name,), pass_to_pass=())
    verdict = await grade(backend, task, diff)
    assert verdict.kind is VerdictKind.UNSOLVED, verdict


ASSERTION = "from calc.add import add\nassert add(2, 3) == 5\n"
UNITTEST_MAIN = (
    "import unittest\nfrom calc.add import add\n"
    "class Test(unittest.TestCase):\n"
    "    def test_sum(self):\n        self.assertEqual(add(2, 3), 5)\n"
    "if __name__ == '__main__':\n    unittest.main()\n"
)
PYTEST_MAIN = (
    "import sys, pytest\nfrom calc.add import add\n"
    "def test_sum():\n    assert add(2, 3) == 5\n"
    "if __name__ == '__main__':\n"
    "    sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', __file__]))\n"
)
COMMANDS: dict[str, Grading] = {
    "python -m pytest": ScriptGrading(
        "eval_cmd", "cd /repo && python -m pytest -q -p no:cacheprovider tests/test_add.py", "/repo"
    ),
    "pytest": ScriptGrading("eval_cmd", "pytest -q -p no:cacheprovider tests/test_add.py", "/repo"),
    "python -m unittest": ScriptGrading(
        "eval_cmd", "cd /repo && python -m unittest tests.test_add", "/repo"
    ),
    "python -c": ScriptGrading(
        "eval_cmd",
        "cd /repo && python3 -B -c 'from calc.add import add; assert add(2, 3) == 5'",
        "/repo",
    ),
    "a program of assertions": ScriptGrading("f2p_script", ASSERTION, "/repo"),
    "a program of unittest": ScriptGrading("f2p_script", UNITTEST_MAIN, "/repo"),
    "a program of pytest": ScriptGrading("f2p_script", PYTEST_MAIN, "/repo"),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("command", ["pytest", "python -m unittest", "a program of assertions"])
async def test_exit_code_0_without_the_end_does_not_solve(
    backend: LocalBackend, task: Task, command: str, how: str
) -> None:
    with_command = with_grading(task, COMMANDS[command])
    verdict = await grade(backend, with_command, diff_of(task.repo, calc__add=ENDS[how]))
    assert verdict.kind is VerdictKind.UNSOLVED, verdict


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_fix_comes_to_its_end(backend: LocalBackend, task: Task, command: str) -> None:
    verdict = await grade(backend, with_grading(task, COMMANDS[command]), task.gold_patch)
    assert verdict.kind is VerdictKind.SOLVED, verdict


@pytest.mark.parametrize(
    "text",
    [
        # as python -c has them
        "import sys; assert sys.argv[1:] == ['a b', '-c'] and sys.argv[0] == '-c', sys.argv",
        "assert __name__ == '__main__' and '__file__' not in globals()",
        "import sys; from calc.add import add; sys.exit(add(2, 3) - 5)",
        "import os, sys; assert sys.path[0] == '' and 'AGENTRL_COMMAND' not in os.environ",
        "import os, sys\nassert os.system(sys.executable + ' -c \"assert 1\"') == 0",
    ],
)
async def test_a_text_of_python_c_runs_as_it_does_elsewhere(
    backend: LocalBackend, task: Task, text: str
) -> None:
    command = f"cd /repo && python3 -c {shlex.quote(text)} 'a b' -c"
    grading = with_grading(task, ScriptGrading("eval_cmd", command, "/repo"))
    verdict = await grade(backend, grading, task.gold_patch)
    assert verdict.kind is VerdictKind.SOLVED, verdict.log
    failing = with_grading(
        task, ScriptGrading("eval_cmd", command.replace("== 0", "== 1"), "/repo")
    )
    if failing.grading != grading.grading:
        verdict = await grade(backend, failing, task.gold_patch)
        assert verdict.kind is VerdictKind.UNSOLVED


async def test_a_command_may_run_other_programs_that_end_as_they_like(
    backend: LocalBackend, task: Task
) -> None:
    inner = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import os; os._exit(0)'])"
    )
    command = f'python -c "{inner}" && python -m unittest tests.test_add'
    verdict = await grade(
        backend, with_grading(task, ScriptGrading("eval_cmd", command, "/r")), task.gold_patch
    )
    assert verdict.kind is VerdictKind.SOLVED, verdict


PRO_PARSER = """\
import json, re, sys
text = open(sys.argv[1]).read()
found = re.findall(r"^(PASSED|FAILED) (\\S+)", text, re.M)
json.dump({"tests": [{"name": n, "status": s} for s, n in found]}, open(sys.argv[3], "w"))
"""
PRINTED = "print('PASSED tests/test_add.py::TestAdd::test_sum', flush=True)\n"


@pytest.mark.parametrize("how", ["printed, then the end", "printed, then failed"])
async def test_printed_results_do_not_please_pro(
    backend: LocalBackend, task: Task, how: str
) -> None:
    script = 'cd /app\npython -m pytest -q -s -p no:cacheprovider "$1"\n'
    grading = ScriptGrading("log_parser", f"set -- tests/test_add.py\n{script}", "/app", PRO_PARSER)
    pro = replace(
        with_grading(task, grading),
        fail_to_pass=("tests/test_add.py::TestAdd::test_sum",),
        pass_to_pass=(),
    )
    end = "import os\nos._exit(0)\n" if "end" in how else ""
    cheat = f"def add(a, b):\n    return a - b\n{PRINTED}{end}"
    verdict = await grade(backend, pro, diff_of(task.repo, calc__add=cheat))
    assert verdict.kind is VerdictKind.UNSOLVED, verdict
    assert "PASSED" in verdict.log


INSTALLED = {
    "calc.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: calc\nVersion: 1\n",
    "calc.egg-info/entry_points.txt": "[console_scripts]\ncalc = calc:main\n",
    "src/calc.egg-link": "/testbed\n",
    "calc/add.py": FIX,
}


async def test_what_an_installation_leaves_is_no_offence(backend: LocalBackend, task: Task) -> None:
    verdict = await grade(backend, task, diff_with(task.repo, INSTALLED))
    assert verdict.kind is VerdictKind.SOLVED, verdict


XFAILS = """\
import pytest, unittest
from calc.add import add

def test_sum():
    assert add(2, 3) == 5
    pytest.xfail("in the test itself")

@pytest.mark.xfail
def test_marked():
    assert add(2, 3) == 6

@pytest.fixture
def marking(request):
    request.node.add_marker(pytest.mark.xfail)

def test_marked_later(marking):
    assert add(2, 3) == 6

class TestSub(unittest.TestCase):
    def test_parts(self):
        for a in range(3):
            with self.subTest(a=a):
                self.assertEqual(add(a, 3), a + 3)

def test_sub(subtests):
    for a in range(3):
        with subtests.test(a=a):
            assert add(a, 3) == a + 3
"""


async def test_expected_failures_and_subtests_of_the_tests_themselves_count(
    backend: LocalBackend, task: Task
) -> None:
    script = (
        f"cd /testbed\ncat > tests/test_x.py <<'END'\n{XFAILS}END\n"
        "python -m pytest -rA -p no:cacheprovider tests/test_x.py\n"
    )
    names = ("sum", "marked", "marked_later", "sub")
    ids = [f"tests/test_x.py::test_{name}" for name in names]
    task = replace(
        with_script(task, script),
        fail_to_pass=(*ids, "tests/test_x.py::TestSub::test_parts"),
        pass_to_pass=(),
    )
    verdict = await grade(backend, task, task.gold_patch)
    assert verdict.kind is VerdictKind.SOLVED, verdict
    broken = await grade(backend, task, "")
    assert broken.fail_to_pass_passed == 2, broken
