"""Repositories that are only in their image, and hidden tests: from rows to graded patches.

The containers are real processes with a root of their own (the stand-in for ``docker``); the images
are made by scripts, with the layout of each set's images.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from runners.sandboxes.contract import Sandbox, SandboxError, SandboxSpec
from runners.sandboxes.remote.containers import ContainerBackend
from runners.tasks.contract import Task, VerdictKind
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.patch import capture_patch
from runners.tasks.repositories.task_repositories import TaskRepositories
from runners.tasks.sets.dataset_files import DatasetError
from runners.tasks.sets.dataset_report import load_dataset, read_dataset
from runners.tasks.sets.readiness import READY, find_readiness
from runners.tasks.sets.task_sets import load_tasks
from tests.fakes.docker.installed import can_stand_in, docker_program
from tests.fakes.images import BROKEN, RIGHT, TEST, make_image, put, write_pytest_layer
from tests.fakes.sandbox_backends import docker_settings, local_settings
from tests.runners.tasks.dataset_rows import config, write
from tests.runners.tasks.example_repositories import git, patch_of
from tests.runners.tasks.published_rows import BUG, FIX, ROWS, TESTS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not can_stand_in(), reason="this machine cannot stand in for docker"),
]
WRONG = FIX.replace("a + b", "a * b")


@dataclass(frozen=True)
class Bench:
    """A backend with one image, and the task of one row of it."""

    backend: ContainerBackend
    task: Task
    """Its repository is made."""

    async def grade(self, diff: str) -> VerdictKind:
        patch = patch_of(diff.encode())
        verdict = await SandboxGrader(self.backend).grade(
            self.task, patch, name="grade", deadline_s=120
        )
        assert verdict.kind is not VerdictKind.INFRA, verdict
        return verdict.kind

    @asynccontextmanager
    async def agent_sandbox(self) -> AsyncIterator[Sandbox]:
        """Open a sandbox as an agent gets it."""
        task = self.task
        spec = SandboxSpec(
            "agent",
            task.repo,
            "none",
            image=task.image,
            workdir=task.workdir,
            removed=task.hidden_paths,
        )
        sandbox = await self.backend.create(spec)
        try:
            yield sandbox
        finally:
            await sandbox.close()

    async def look(self, script: str) -> str:
        """Return what a command prints in an agent's sandbox."""
        async with self.agent_sandbox() as sandbox:
            result = await sandbox.run(["bash", "-c", script], deadline_s=60)
            return (result.stdout + result.stderr).decode()


@asynccontextmanager
async def bench(folder: Path, row: dict[str, Any], image: str) -> AsyncIterator[Bench]:
    """Yield the task of a row whose repository is made from its image."""
    write_pytest_layer(folder / "layer")
    with docker_program(folder / "bin", image=image, layer=folder / "layer"):
        backend = ContainerBackend(docker_settings(), folder / "driver")
        file = write(folder / "rows.jsonl", [row])
        (task,) = load_dataset(config(file), str(file))
        assert task.origin is not None
        assert task.origin.source is None
        try:
            made = await TaskRepositories(backend, folder / "root").ensure(task)
            yield Bench(backend, made)
        finally:
            await backend.close()


async def test_a_repository_that_is_only_in_its_image_is_graded(tmp_path: Path) -> None:
    async with bench(tmp_path, ROWS["swebench"], make_image("/testbed")) as found:
        repo = found.task.repo
        assert git(repo, "rev-list", "--all", "--count") == "1"
        assert sorted(git(repo, "ls-files").split()) == [".gitignore", "calc.py"]
        assert await found.grade(WRONG) is VerdictKind.UNSOLVED


async def test_what_an_image_has_besides_the_repository_stays_and_is_no_patch(
    tmp_path: Path,
) -> None:
    async with (
        bench(tmp_path, ROWS["swebench"], make_image("/testbed")) as found,
        found.agent_sandbox() as sandbox,
    ):
        script = "cat built.so node_modules/dep/index.js; echo > node_modules/x; echo 1 > new.py"
        result = await sandbox.run(["bash", "-c", script], deadline_s=60)
        assert result.stdout == b"built\ninstalled\n", result
        patch = await capture_patch(found.task, sandbox)
        assert patch.files == ("new.py",), patch


async def test_the_last_line_of_pro_is_applied_to_the_patch_and_hidden_from_agents(
    tmp_path: Path,
) -> None:
    scripts = tmp_path / "run_scripts" / ROWS["swebench_pro"]["instance_id"]
    scripts.mkdir(parents=True)
    (scripts / "run_script.sh").write_text('python -m pytest -rA "$1"\n')
    (scripts / "parser.py").write_text(
        "import json, sys\n"
        "lines = [l.split()[:2] for l in open(sys.argv[1]) if l.startswith(('PASSED', 'FAILED'))]\n"
        "tests = [{'name': n, 'status': s} for s, n in lines]\n"
        "json.dump({'tests': tests}, open(sys.argv[3], 'w'))\n"
    )
    later = (
        f"{put(TEST, 'test_calc.py')}\ngit add -A\ngit commit -qm 'the fix'\ngit tag fixed\n"
        "git checkout -q HEAD~1 2>&1"
    )
    row = {
        **ROWS["swebench_pro"],
        "base_commit": "",
        "selected_test_files_to_run": "['test_calc.py']",
        "fail_to_pass": "['test_calc.py::test_add']",
        "pass_to_pass": "[]",
        "before_repo_set_cmd": "git reset --hard HEAD\ngit checkout fixed -- test_calc.py",
    }
    async with bench(tmp_path, row, make_image("/app", more=later)) as found:
        assert found.task.protected == ("test_calc.py",)
        seen = await found.look("ls; git tag; git log --all --oneline")
        assert "test_calc.py" not in seen
        own = TESTS.replace("== 3", "== 1")
        assert await found.grade(own) is VerdictKind.UNSOLVED


async def test_the_tests_of_r2e_are_hidden_and_its_map_must_be_met_exactly(tmp_path: Path) -> None:
    known_bug = "class TestAdd:\n    def test_known_bug(self):\n        assert 0\n"
    tests = f"from calc import add\n{known_bug}"
    tests += "    def test_add(self):\n        assert add(2, 1) == 3\n"
    more = (
        f"mkdir /r2e_tests\n{put(tests, '/r2e_tests/test_1.py')}\n"
        "echo 'python -W ignore -m pytest -rA r2e_tests' > run_tests.sh\nchmod -R a+rX /r2e_tests"
    )
    async with bench(tmp_path, ROWS["r2e_gym"], make_image("/testbed", more=more)) as found:
        seen = await found.look("ls -d /r2e_tests r2e_tests run_tests.sh; git status --short")
        assert seen.count("No such file") == 3, seen
        cheat = (
            "diff --git a/conftest.py b/conftest.py\nnew file mode 100644\n--- /dev/null\n"
            "+++ b/conftest.py\n@@ -0,0 +1,3 @@\n+def pytest_collection_modifyitems(items):\n"
            "+    items[:] = [i for i in items if 'known' not in i.name]\n+\n"
        )
        assert await found.grade(FIX + cheat) is VerdictKind.SOLVED  # conftest.py is restored


async def test_the_bug_of_swe_smith_is_the_base_and_its_tests_are_hidden(tmp_path: Path) -> None:
    files = "\n".join(
        (put(TEST, "test_calc.py"), put("def test_sub():\n    assert 1\n", "test_more.py"))
    )
    image = make_image("/testbed", calc=RIGHT, files=files)
    async with bench(tmp_path, ROWS["swe_smith"], image) as found:
        assert (found.task.repo / "calc.py").read_text() == BROKEN
        seen = await found.look("ls; git log --format=%s; git show --stat HEAD | cat")
        assert "test_more.py" in seen
        assert "test_calc.py" not in seen
        objects = await found.look(
            "git cat-file --batch-all-objects --batch-check='%(objectname)' | "
            "while read id; do git cat-file -p $id; done"
        )
        assert "a - b" in objects
        assert "a + b" not in objects
        assert await found.grade(BUG.replace("a/calc.py b/calc.py", "a/no b/no")) is (
            VerdictKind.UNSOLVED
        )


async def test_an_image_without_a_repository_is_named(tmp_path: Path) -> None:
    row = {**ROWS["swebench"], "workdir": "/elsewhere"}
    with pytest.raises(SandboxError, match="there is no git repository in /elsewhere"):
        async with bench(tmp_path, row, make_image("/testbed")):
            pass


def test_sandboxes_without_images_refuse_such_rows_at_once(tmp_path: Path) -> None:
    file = write(
        tmp_path / "rows.jsonl", [ROWS["swebench"], {**ROWS["openswe"], "instance_id": "b"}]
    )
    report = read_dataset(config(file), str(file))
    for task in report.tasks:
        found = find_readiness(task, local_settings())
        assert found.state == "needs image"
        assert f"its repository is only in the image {task.image}: choose" in found.reason
        assert find_readiness(task, docker_settings()) is READY
    lines = ("task=jsonl", f"task.path='{file}'", "run.steps=0")
    with pytest.raises(DatasetError, match="2 of 2 tasks cannot be run with sandbox=local"):
        load_tasks(compose([*lines]))
