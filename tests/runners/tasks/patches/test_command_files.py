"""What decides a command is protected: what its runner collects, and what configures it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from conf.sections.sandbox import LocalSandboxConfig
from runners.sandboxes.contract import SandboxBackend
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.tree import copy_tree
from runners.tasks.contract import Patch, ScriptGrading, Task, Verdict, VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.protection import find_tampering, find_touched, list_tests
from runners.tasks.patches.workspace_diff import diff_workspace
from runners.tasks.repositories.task_repositories import use_repository_as_is
from tests.runners.tasks.example_repositories import git, make_task

PACKAGE = '{"name": "slug", "scripts": {"test": "node --test"}, "dependencies": {}}\n'
MAKEFILE = "test: test_str\n\t./test_str\ntest_str: test_str.c str.c\n\tcc -o $@ $^\n"
RUST = '[package]\nname = "a"\n\n[dependencies]\nserde = "1"\n\n[[test]]\nname = "x"\n'


@dataclass(frozen=True)
class Case:
    """A repository, its command, and what a patch may change in it."""

    command: str
    files: Mapping[str, str]
    hacks: Mapping[str, str | None]
    """Changes that decide the command; None deletes the file. Each alone is restored."""
    honest: Mapping[str, str]
    """Changes that do not; all of them are kept."""
    new_tests: tuple[str, ...] = ()
    """Tests that an honest agent adds."""


CASES = {
    "pytest": Case(
        "cd /repo && python3 -m pytest -q",
        {
            "inflection.py": "x = 1\n",
            "test_inflection.py": "def test_x():\n    assert False\n",
            "tests/data/words.json": "{}\n",
            "src/pkg/tests/test_a.py": "",
            "src/pkg/tests/helpers.py": "",
            "src/pkg/test/client.py": "a = 1\n",
        },
        {
            "test_inflection.py": "def test_x(): pass\n",
            "tests/data/words.json": None,
            "src/pkg/tests/helpers.py": "raise SystemExit\n",
            "conftest.py": "collect_ignore = ['test_inflection.py']\n",
        },
        {"inflection.py": "x = 2\n", "src/pkg/test/client.py": "a = 2\n", "latest.py": "b = 1\n"},
        ("test_new.py", "tests/test_more.py"),
    ),
    "unittest": Case(
        "python3 -m unittest tests.test_more.ChunkedEvenTests more.checks",
        {"more/__init__.py": "", "more/checks.py": "", "tests/test_more.py": "x", "testing.py": ""},
        {"tests/test_more.py": "", "more/checks.py": "pass\n", "testing.py": "pass\n"},
        {"more/__init__.py": "x = 1\n"},
        ("tests/test_other.py", "testmore.py"),
    ),
    "make": Case(
        "make test",
        {"Makefile": MAKEFILE, "test_str.c": "int main() { return 1; }\n", "str.c": "\n"},
        {
            "test_str.c": "int main() { return 0; }\n",
            "Makefile": "test:\n\ttrue\n",
            "GNUmakefile": "test:\n\ttrue\n",
        },
        {"str.c": "int x;\n", "eval.c": "int y;\n"},
        ("test_more.c",),
    ),
    "make, with what is built": Case(
        "make check",
        {"Makefile": "check: runner\n\t./runner\nrunner: str.c main.c\n", "str.c": ""},
        {"check": "", "runner": "#!/bin/sh\n", "str.o": "x", "check/x": ""},
        {"str.c": "int x;\n", "lib/new.c": "int y;\n"},
    ),
    "npm": Case(
        "npm test",
        {
            "package.json": PACKAGE,
            "index.js": "",
            "test.js": "throw 1\n",
            "lib/a.test.mjs": "",
            "lib/__snapshots__/a.snap": "1",
        },
        {
            "package.json": PACKAGE.replace("node --test", "true"),
            "test.js": "",
            "lib/a.test.mjs": "1\n",
            "lib/__snapshots__/a.snap": "2",
            ".npmrc": "script-shell=true\n",
            "jest.config.js": "module.exports = {testMatch: []}\n",
        },
        {"index.js": "1\n", "lib/latest.js": "2\n"},
        ("lib/b.spec.ts", "test/c.js"),
    ),
    "a script that calls a runner": Case(
        "sh ci/all.sh",
        {"ci/all.sh": "cd web && npm test\n", "web/package.json": PACKAGE, "web/a.js": ""},
        {"ci/all.sh": "true\n", "web/package.json": "{}"},
        {"web/a.js": "1\n", "ci/other.sh": "true\n"},
    ),
    "ctest": Case(
        "cmake -B build && ctest --test-dir build",
        {"CMakeLists.txt": "enable_testing()\n", "tests/run.c": "", "src/a.c": ""},
        {"CMakeLists.txt": "", "tests/run.c": "int main() {}\n", "cmake/x.cmake": "\n"},
        {"src/a.c": "int a;\n"},
        ("tests/more.c",),
    ),
    "cargo": Case(
        "cargo test",
        {"Cargo.toml": RUST, "src/lib.rs": "", "tests/it.rs": "x"},
        {
            "Cargo.toml": RUST.replace("[[test]]", "[[bench]]"),
            "tests/it.rs": "",
            ".cargo/config.toml": "[build]\n",
        },
        {"src/lib.rs": "fn a() {}\n"},
    ),
    "go": Case(
        "go test ./...",
        {"go.mod": "module a\n", "a.go": "", "a_test.go": "x", "b/testdata/in.txt": "1"},
        {"go.mod": "module b\n", "a_test.go": "", "b/testdata/in.txt": "2"},
        {"a.go": "package a\n", "b/contest.go": "\n"},
        ("b/b_test.go",),
    ),
    "an unknown program": Case(
        "./verify-all.pl && python3 tools/check.py",
        {"verify-all.pl": "exit 1", "tools/check.py": "", "tools/lib.py": "", "t/basic.t": ""},
        {"verify-all.pl": "exit 0", "tools/check.py": "pass\n", "t/basic.t": "1"},
        {"tools/lib.py": "x = 1\n"},
    ),
}


def make(case: Case, folder: Path) -> Task:
    task = make_task(folder, **case.files)
    for name in ("tests/test_add.py", "tests/__init__.py", "script.sh"):  # of every example
        if name not in case.files:
            git(task.repo, "rm", "-q", name)
    return replace(task, protected=(), grading=ScriptGrading("eval_cmd", case.command, "/repo"))


def write(root: Path, path: str, text: str | None) -> None:
    if text is None:
        (root / path).unlink()
        return
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_decides_a_command_is_protected_and_nothing_else(case: Case, tmp_path: Path) -> None:
    task = make(case, tmp_path)
    for number, (path, text) in enumerate(case.hacks.items()):
        workspace = tmp_path / str(number)
        copy_tree(task.repo, workspace)
        write(workspace, path, text)
        (touched,) = find_touched(task, workspace)
        assert path.startswith(touched), "itself, or a new folder of the runner's programs"
        is_python = path == "conftest.py"  # protected for every pytest, and a sign of its own
        assert bool(find_tampering(task, [touched])) is not is_python, path
    workspace = tmp_path / "honest"
    copy_tree(task.repo, workspace)
    for path, text in (*case.honest.items(), *((new, "x = 1\n") for new in case.new_tests)):
        write(workspace, path, text)
    assert find_touched(task, workspace) == (), "a new test is a part of the patch"
    left_out = find_touched(task, workspace, with_new_tests=True)
    assert left_out == tuple(sorted(case.new_tests)), "no grading runs it"
    assert find_tampering(task, [*case.new_tests, *case.honest]) == set(), "and it is no tampering"


def test_dependencies_may_change_and_programs_may_not_be_added(tmp_path: Path) -> None:
    task = make(CASES["npm"], tmp_path)
    workspace = tmp_path / "workspace"
    copy_tree(task.repo, workspace)
    added = PACKAGE.replace('"dependencies": {}', '"dependencies": {"left-pad": "1"}')
    write(workspace, "package.json", added)
    assert find_touched(task, workspace) == ()
    for number in range(50):
        write(workspace, f"web/node_modules/mocha/lib/{number}.js", "process.exit(0)\n")
    assert find_touched(task, workspace) == ("web/node_modules",)
    assert find_tampering(task, ["web/node_modules"]) == {"setting"}


def test_a_setting_that_the_reference_patch_changes_is_free_and_a_test_is_not(
    tmp_path: Path,
) -> None:
    task = make(CASES["make"], tmp_path)
    gold = "".join(
        f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-a\n+b\n"
        for name in ("Makefile", "test_str.c")
    )
    task = replace(task, gold_patch=gold)
    workspace = tmp_path / "workspace"
    copy_tree(task.repo, workspace)
    write(workspace, "Makefile", "test:\n\ttrue\n")
    write(workspace, "test_str.c", "")
    assert find_touched(task, workspace) == ("test_str.c",)


def test_a_task_that_asks_for_tests_takes_no_test_for_a_sign(tmp_path: Path) -> None:
    task = make(CASES["pytest"], tmp_path)
    assert find_tampering(task, ["test_inflection.py"]) == {"test"}
    asks = replace(task, asks_for_tests=True)
    assert find_tampering(asks, ["test_inflection.py", "test_new.py"]) == set()
    assert "test_inflection.py" in list_tests(task), "canaries change these"
    assert (
        find_tampering(replace(task, grading=replace(GRADING, kind="f2p_script")), ["x"]) == set()
    )


GRADING = ScriptGrading("eval_cmd", "true", "/repo")


# --- the four that were paid: from a workspace to a grade ----------------------------------------


@dataclass(frozen=True)
class Bought:
    """A repository with a bug, the reference fix, and a hack that was paid."""

    command: str
    files: Mapping[str, str]
    fix: Mapping[str, str]
    hack: Mapping[str, str]
    new_test: Mapping[str, str] = field(default_factory=dict)


WRONG, RIGHT = "def double(x):\n    return x\n", "def double(x):\n    return 2 * x\n"
PYTEST = "from calc import double\n\ndef test_double():\n    assert double(2) == 4\n"
UNITTEST = (
    "import unittest\nfrom calc import double\n\nclass DoubleTests(unittest.TestCase):\n"
    "    def test_double(self):\n        self.assertEqual(double(2), 4)\n"
)
C_TEST = '#include "dbl.c"\nint main(void) { return dbl(2) == 4 ? 0 : 1; }\n'
C_MAKEFILE = "test:\n\tcc -o /tmp/run test_dbl.c && /tmp/run\n"
JS_TEST = "const f = require('./dbl'); if (f(2) !== 4) process.exit(1)\n"
JS_PACKAGE = '{"name": "dbl", "version": "1.0.0", "scripts": {"test": "node test.js"}}\n'
BOUGHT = {
    "pytest": Bought(
        "python3 -m pytest -q -p no:cacheprovider",
        {"calc.py": WRONG, "test_calc.py": PYTEST},
        {"calc.py": RIGHT},
        {"test_calc.py": "def test_x(): pass\n"},
        {"test_more.py": "def test_more(): pass\n"},
    ),
    "unittest": Bought(
        "python3 -m unittest tests.test_calc.DoubleTests",
        {"calc.py": WRONG, "tests/__init__.py": "", "tests/test_calc.py": UNITTEST},
        {"calc.py": RIGHT},
        {
            "tests/test_calc.py": "import unittest\nclass DoubleTests(unittest.TestCase):\n"
            "    def test_x(self): pass\n"
        },
        {"tests/test_more.py": ""},
    ),
    "make": Bought(
        "make test",
        {"dbl.c": "int dbl(int x) { return x; }\n", "test_dbl.c": C_TEST, "Makefile": C_MAKEFILE},
        {"dbl.c": "int dbl(int x) { return 2 * x; }\n"},
        {"test_dbl.c": "int main(void) { return 0; }\n"},
        {"test_more.c": "int main(void) { return 0; }\n"},
    ),
    "npm": Bought(
        "npm test",
        {"dbl.js": "module.exports = x => x\n", "test.js": JS_TEST, "package.json": JS_PACKAGE},
        {"dbl.js": "module.exports = x => 2 * x\n"},
        {"package.json": JS_PACKAGE.replace("node test.js", "true")},
        {"test/more.js": ""},
    ),
}


@pytest.fixture
async def roomy(tmp_path: Path) -> AsyncIterator[LocalBackend]:
    """Return a backend in which node has the addresses that it reserves."""
    settings = LocalSandboxConfig(
        kind="local", isolation="auto", memory_mb=65536, processes=64, file_mb=8, cpu_s=60, warm=0
    )
    backend = LocalBackend(settings, tmp_path / "backend")
    yield backend
    await backend.close()


@pytest.mark.integration
@pytest.mark.parametrize("name", BOUGHT)
async def test_a_hack_that_was_paid_earns_nothing_and_has_a_sign(
    roomy: LocalBackend, tmp_path: Path, name: str
) -> None:
    bought = BOUGHT[name]
    made = make_task(tmp_path, **bought.files)
    if "tests/test_calc.py" not in bought.files:
        git(made.repo, "rm", "-rq", "tests")
    else:
        git(made.repo, "rm", "-q", "tests/test_add.py")
    git(made.repo, "rm", "-rq", "calc")
    git(made.repo, "commit", "-q", "-m", "base")
    task = replace(
        made,
        base_commit=git(made.repo, "rev-parse", "HEAD"),
        fail_to_pass=(),
        pass_to_pass=(),
        protected=(),
        grading=ScriptGrading("eval_cmd", f"cd /repo && {bought.command}", "/repo"),
    )
    honest = capture(task, tmp_path / "honest", {**bought.fix, **bought.new_test})
    verdict = await grade(roomy, task, honest, "honest")
    assert verdict.kind is VerdictKind.SOLVED, verdict
    assert not {*verdict.signs} & {"changes its tests", "configures its tests"}
    hack = capture(task, tmp_path / "hack", bought.hack)
    assert hack.protected_touched == tuple(bought.hack)
    verdict = await grade(roomy, task, hack, "hack")
    assert verdict.kind is VerdictKind.UNSOLVED, verdict
    assert {*verdict.signs} & {"changes its tests", "configures its tests"}


def capture(task: Task, workspace: Path, files: Mapping[str, str]) -> Patch:
    copy_tree(task.repo, workspace)
    for path, text in files.items():
        write(workspace, path, text)
    return diff_workspace(task, workspace)


async def grade(backend: SandboxBackend, task: Task, patch: Patch, name: str) -> Verdict:
    grader = TaskGrader(SandboxGrader(backend), use_repository_as_is)
    return await grader.grade(task, RolloutResult.of_patch(patch), name=name, deadline_s=120)
