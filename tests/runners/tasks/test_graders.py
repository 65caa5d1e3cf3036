"""Every kind of grading in real sandboxes: honest patches and forged patches."""

from __future__ import annotations

import ast
import importlib.util
import socket
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from runners.sandboxes.contract import CommandResult, Sandbox, SandboxError, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.tasks.contract import ScriptGrading, Task, VerdictKind
from runners.tasks.grading.graders.eval_script import (
    PLUGIN,
    TESTED,
    parse_run,
    run_script,
    script_mounts,
)
from runners.tasks.grading.graders.packages import (
    build_eval_script,
    describe_instance,
    log_file,
)
from runners.tasks.grading.graders.parsers import judge_report, judge_run
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.package_logs import read_report
from tests.runners.tasks.example_repositories import patch_of
from tests.runners.tasks.pytest_tasks import (
    diff_of,
    grade,
    make_pytest_task,
    report_line,
    run_log,
    with_grading,
    with_official_judge,
)

pytestmark = pytest.mark.integration

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("swebench") is None, reason="the extra swebench is not installed"
)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_pytest_task(tmp_path_factory.mktemp("task"))


@pytest.mark.parametrize("kind", ["pytest", pytest.param("swebench", marks=needs_package)])
async def test_the_gold_patch_solves_and_an_empty_patch_does_not(
    backend: LocalBackend, task: Task, kind: str
) -> None:
    task = with_official_judge(task) if kind == "swebench" else task
    gold = await grade(backend, task, task.gold_patch)
    assert (gold.kind, gold.reason) == (VerdictKind.SOLVED, "all tests pass"), gold
    empty = await grade(backend, task, "")
    assert (empty.kind, empty.fail_to_pass_passed) == (VerdictKind.UNSOLVED, 0)
    assert (empty.pass_to_pass_passed, empty.pass_to_pass_total) == (3, 3)


WRONG = "def add(a, b):\n    return a - b\n"
NAMES = (
    "PASSED tests/test_calc.py::test_sum\\nPASSED tests/test_calc.py::TestMore::test_sum[1]\\n"
    "PASSED tests/test_calc.py::TestMore::test_sum[2]\\nPASSED tests/test_calc.py::test_zero\\n"
    "XFAIL tests/test_calc.py::test_expected\\n"
    "PASSED tests/test_calc.py::test_spaces[a b]\\n"
)
FORGERIES = {
    "a printed summary, then the end": "import os\nfor fd in range(1, 40):\n"
    f"    try: os.write(fd, b'\\n{NAMES}')\n    except OSError: pass\nos._exit(0)\n",
    "SystemExit at import": "import sys\nsys.exit(0)\n",
    "pytest.exit": "import pytest\npytest.exit('done', returncode=0)\n",
    "skip at import": "import pytest\npytest.skip('x', allow_module_level=True)\n",
    "another makereport": WRONG + "import _pytest.runner as r, _pytest.reports as p\n"
    "real = p.TestReport.from_item_and_call.__func__\n"
    "def passed(cls, item, call):\n"
    "    call.excinfo = None\n    return real(cls, item, call)\n"
    "p.TestReport.from_item_and_call = classmethod(passed)\n",
    "another raise": WRONG + "import builtins\nclass Quiet:\n    pass\n"
    "import _pytest.python as p\np.Function.runtest = lambda self: None\n",
    "reports from elsewhere": WRONG + "import os\nfor fd in range(3, 60):\n"
    "    try: os.write(fd, b'passed \"tests/test_calc.py::test_sum\"\\n')\n"
    "    except OSError: pass\n",
    "everything killed": "import os\nos.kill(-1, 9)\n",
}


@pytest.mark.parametrize("how", FORGERIES)
async def test_a_forgery_does_not_solve(backend: LocalBackend, task: Task, how: str) -> None:
    verdict = await grade(backend, task, diff_of(task.repo, calc__add=FORGERIES[how]))
    assert verdict.kind is VerdictKind.UNSOLVED, verdict
    assert verdict.fail_to_pass_passed == 0


IMPERSONATING = f"""\
import json, os
import agentrl_channel
tell = agentrl_channel.get_teller()
tell("begin")
for name in "{NAMES}".splitlines():
    tell(f"test passed {{json.dumps(name.partition(' ')[2])}}")
tell("finish 0 6 0 -")
tell("exit")
os._exit(0)
"""


async def test_a_module_that_impersonates_our_plugin_does_not_solve(
    backend: LocalBackend, task: Task
) -> None:
    verdict = await grade(backend, task, diff_of(task.repo, agentrl_report=IMPERSONATING))
    assert (verdict.kind, verdict.fail_to_pass_passed) == (VerdictKind.UNSOLVED, 0), verdict


@needs_package
async def test_a_log_that_fools_the_official_judge_does_not_fool_ours(
    backend: LocalBackend, task: Task
) -> None:
    grading, forged = task.grading, FORGERIES["a printed summary, then the end"]
    assert isinstance(grading, ScriptGrading)

    def change(root: Path) -> None:
        (root / "calc/add.py").write_text(forged)

    mounts = script_mounts()
    sandbox = await backend.create(
        SandboxSpec("s", task.repo, "none", mounts=mounts, change=change)
    )
    try:
        run = await run_script(grading.workdir, build_eval_script(task), sandbox, 30)
    finally:
        await sandbox.close()
    with log_file(run.log) as file:
        report = read_report(describe_instance(task), str(file))
    assert report["resolved"]
    assert judge_report(task, run, report).kind is VerdictKind.UNSOLVED


async def test_what_never_ends_is_unsolved_at_the_deadline(
    backend: LocalBackend, task: Task
) -> None:
    waits = (
        "import time\ndef add(a, b):\n    time.sleep(600 * (a == 2 and b == 3))\n    return a + b\n"
    )
    verdict = await grade(backend, task, diff_of(task.repo, calc__add=waits), deadline_s=8)
    assert (verdict.kind, verdict.timed_out) == (VerdictKind.UNSOLVED, True)


@pytest.mark.parametrize("name", TESTED)
def test_our_modules_can_be_read_by_the_oldest_python_of_swe_bench(name: str) -> None:
    text = TESTED[name].read_text("utf-8")
    ast.parse(text, feature_version=(3, 6))
    assert "from __future__" not in text


def test_an_unknown_pytest_runs_without_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "pytest.py").write_text("def hookimpl(**_): return lambda function: function\n")
    (tmp_path / "_pytest").mkdir()
    (tmp_path / "_pytest/__init__.py").write_text("")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "relay"))
        listener.listen()
        done = subprocess.run(
            [sys.executable, "-c", "import agentrl_report; print(agentrl_report.make_reporter())"],
            env={
                "PYTHONPATH": f"{tmp_path}:{PLUGIN.parent}",
                "AGENTRL_CHANNEL": str(tmp_path / "relay"),
            },
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == "None\n"
    assert "agentrl_report: ModuleNotFoundError" in done.stderr


# --- reading of pytest's reports ---------------------------------------------------------------


def result(*lines: str, code: int = 0) -> CommandResult:
    return CommandResult(code, run_log("start", "begin", *lines, "exit 0"), b"the log", 0.1)


@pytest.mark.parametrize(
    ("outcome", "first", "second"),
    [
        ("passed", 1, 1),
        ("xfailed", 1, 1),
        ("skipped", 0, 0),
        ("xpassed", 0, 0),
        ("failed", 0, 0),
        ("error", 0, 0),
    ],
)
def test_outcomes_count_as_in_swebench(task: Task, outcome: str, first: int, second: int) -> None:
    small = replace(task, fail_to_pass=("t::a",), pass_to_pass=("t::b",))
    run = parse_run("n", result(report_line(outcome, "t::a"), report_line(outcome, "t::b")))
    verdict = judge_run(small, run)
    assert (verdict.fail_to_pass_passed, verdict.pass_to_pass_passed) == (first, second)


def test_a_cut_off_id_stands_for_tests_that_agree(task: Task) -> None:
    small = replace(task, fail_to_pass=("t::a[x",), pass_to_pass=("t::b[x", "t::c"))
    lines = [
        report_line("passed", "t::a[x y]"),
        report_line("passed", "t::a[x z]"),
        report_line("passed", "t::c[x]"),
    ]
    run = parse_run(
        "n", result(*lines, report_line("passed", "t::b[x]"), report_line("failed", "t::b[x y]"))
    )
    verdict = judge_run(small, run)
    assert (verdict.fail_to_pass_passed, verdict.pass_to_pass_passed) == (1, 0)


def test_the_worst_of_several_reports_counts(task: Task) -> None:
    small = replace(task, fail_to_pass=("t::a",), pass_to_pass=())
    run = parse_run("n", result(report_line("failed", "t::a"), report_line("passed", "t::a")))
    assert judge_run(small, run).kind is VerdictKind.UNSOLVED


def test_only_a_script_that_was_not_started_is_infra(task: Task) -> None:
    dead = CommandResult(1, b"m start\nm begin\n", b"no python", 0.1)
    assert judge_run(task, parse_run("n", dead)).kind is VerdictKind.INFRA
    silent = CommandResult(0, run_log("start", "exit 127"), b"no pytest", 0.1)
    verdict = judge_run(task, parse_run("n", silent))
    assert (verdict.kind, verdict.reason) == (VerdictKind.UNSOLVED, "pytest did not start")


# --- exit codes, Pro ---------------------------------------------------------------------------


async def test_a_command_decides_by_its_exit_code(backend: LocalBackend, task: Task) -> None:
    command = "cd /repo && python -m pytest -q -p no:cacheprovider tests/test_add.py"
    with_command = with_grading(task, ScriptGrading("eval_cmd", command, "/repo"))
    solved = await grade(backend, with_command, task.gold_patch)
    assert solved.kind is VerdictKind.SOLVED, solved
    empty = await grade(backend, with_command, "")
    assert (empty.kind, empty.reason) == (
        VerdictKind.UNSOLVED,
        "the command ended with exit code 1",
    )
    loops = with_grading(task, ScriptGrading("eval_cmd", "sleep 60", "/repo"))
    assert (await grade(backend, loops, "", deadline_s=4)).timed_out


async def test_a_program_outside_the_repository_decides(backend: LocalBackend, task: Task) -> None:
    program = (
        "import sys, pytest\nfrom calc.add import add\n"
        "def test_sum():\n    assert add(2, 3) == 5\n"
        "if __name__ == '__main__':\n"
        "    sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', __file__]))\n"
    )
    with_program = with_grading(task, ScriptGrading("f2p_script", program, "/repo"))
    assert (await grade(backend, with_program, task.gold_patch)).kind is VerdictKind.SOLVED
    assert (await grade(backend, with_program, "")).kind is VerdictKind.UNSOLVED


PARSER = """\
import json, re, sys
text = open(sys.argv[1]).read()
found = re.findall(r"^(PASSED|FAILED) (\\S+)", text, re.M)
tests = [{"name": name, "status": status} for status, name in found]
json.dump({"tests": tests}, open(sys.argv[3], "w"))
"""


async def test_pro_runs_its_script_and_its_parser(backend: LocalBackend, task: Task) -> None:
    script = (
        'cd /app\nIFS=, read -ra files <<< "$1"\npython -m pytest -rA -q "${files[@]}"\nexit 3\n'
    )
    grading = ScriptGrading(
        "log_parser", f"set -- tests/test_add.py,tests/test_calc.py\n{script}", "/app", PARSER
    )
    pro = replace(
        with_grading(task, grading),
        fail_to_pass=("tests/test_add.py::TestAdd::test_sum",),
        pass_to_pass=("tests/test_calc.py::test_zero",),
    )
    solved = await grade(backend, pro, task.gold_patch)
    assert solved.kind is VerdictKind.SOLVED, solved
    reason = (await grade(backend, pro, "")).reason
    assert reason == "1 of 1 fail-to-pass tests fail (tests/test_add.py::TestAdd::test_sum)"
    broken = with_grading(pro, replace(grading, parser="raise SystemExit('cannot read')"))
    verdict = await grade(backend, broken, task.gold_patch)
    assert verdict.reason == "the parser failed: cannot read"
    none = replace(pro, fail_to_pass=(), pass_to_pass=())
    assert (await grade(backend, none, task.gold_patch)).kind is VerdictKind.UNSOLVED


# --- failures of the sandbox -------------------------------------------------------------------


@dataclass
class UnremovableSandbox:
    """A sandbox that cannot be removed."""

    sandbox: Sandbox
    spec: SandboxSpec = field(init=False)

    def __post_init__(self) -> None:
        self.spec = self.sandbox.spec

    def __getattr__(self, name: str) -> object:
        return getattr(self.sandbox, name)

    async def close(self) -> None:
        await self.sandbox.close()
        raise SandboxError("device or resource busy")


@dataclass
class UnremovableBackend:
    """Makes sandboxes that cannot be removed."""

    backend: LocalBackend

    async def create(self, spec: SandboxSpec) -> UnremovableSandbox:
        return UnremovableSandbox(await self.backend.create(spec))


async def test_a_sandbox_that_cannot_be_removed_does_not_change_the_verdict(
    backend: LocalBackend, task: Task
) -> None:
    grader = SandboxGrader(UnremovableBackend(backend))  # type: ignore[arg-type]
    verdict = await grader.grade(
        with_grading(task, ScriptGrading("eval_cmd", "true", "/repo")),
        patch_of(b""),
        name="g",
        deadline_s=30,
    )
    assert verdict.kind is VerdictKind.SOLVED


async def test_the_log_is_what_the_script_printed(backend: LocalBackend, task: Task) -> None:
    grading = task.grading
    assert isinstance(grading, ScriptGrading)
    mounts = script_mounts()
    sandbox = await backend.create(SandboxSpec("s", task.repo, "none", mounts=mounts))
    try:
        run = await run_script(
            grading.workdir, "pwd; echo oops >&2; cd /testbed; exit 3", sandbox, 30
        )
    finally:
        await sandbox.close()
    assert (run.started, run.began, run.exit_code) == (True, False, 3)
    assert run.log == f"{sandbox.workdir}\noops\n".encode()
