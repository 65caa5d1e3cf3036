"""Tasks with an image: it is requested, and its repository is replaced by the pinned one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.remote.e2b import E2bBackend
from runners.tasks.contract import Origin, ScriptGrading, Task, VerdictKind
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.repositories.task_repositories import TaskRepositories
from tests.fakes.e2b.server import E2bServer
from tests.fakes.sandbox_backends import e2b_settings
from tests.runners.tasks.example_repositories import make_task, patch_of

pytestmark = pytest.mark.integration

IMAGE = """
if [ ! -e /testbed ]; then
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    mkdir /testbed && cd /testbed && git init -q .
    echo '*.so' > .gitignore && echo old > only_in_image.py && touch 'a name'
    git add . && git commit -qm future && git tag the-fix
    echo built > built.so && echo loose > loose.txt
    cd / && echo image > /etc/image
fi
"""
FIXED = (
    b"diff --git a/calc/add.py b/calc/add.py\n--- a/calc/add.py\n+++ b/calc/add.py\n"
    b"@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """A task that only its image can solve."""
    command = "test -e /etc/image && cd /testbed && python -m unittest tests.test_add"
    return replace(
        make_task(tmp_path / "task"),
        image="swe-task-1",
        workdir="/testbed",
        grading=ScriptGrading("eval_cmd", command, "/testbed"),
    )


async def test_the_repository_of_the_image_is_replaced_and_built_files_stay(
    server: E2bServer, backend: E2bBackend, task: Task
) -> None:
    server.profile = IMAGE
    spec = SandboxSpec("agent", task.repo, "none", image=task.image, workdir=task.workdir)
    sandbox = await backend.create(spec)
    script = "pwd; git log --format=%s; git tag; ls; cat built.so; touch built.so calc/add.py"
    result = await sandbox.run(["bash", "-c", script], deadline_s=30)
    assert result.exit_code == 0, result
    lines = result.stdout.decode().splitlines()
    assert lines[:2] == ["/testbed", "base"]
    assert {"built.so", "loose.txt", "calc", "built"} <= set(lines)
    assert not {"the-fix", "only_in_image.py", "a name"} & set(lines)
    await sandbox.close()


@pytest.mark.parametrize("image_key", [None, "example.com/image"])
async def test_a_patch_is_graded_in_the_tasks_image(
    server: E2bServer, tmp_path: Path, task: Task, image_key: str | None
) -> None:
    server.profile = IMAGE
    backend = E2bBackend(e2b_settings(server, image_key=image_key), tmp_path / "driver")
    grader = SandboxGrader(backend)
    for diff, kind in ((FIXED, VerdictKind.SOLVED), (b"", VerdictKind.UNSOLVED)):
        verdict = await grader.grade(task, patch_of(diff), name="g", deadline_s=60)
        assert verdict.kind is kind, verdict
    requests = [machine.created for machine in server.ended]
    if image_key is None:
        assert [each["templateID"] for each in requests] == ["swe-task-1"] * 2
    else:
        assert [each["templateID"] for each in requests] == ["base"] * 2
        assert [each["metadata"][image_key] for each in requests] == ["swe-task-1"] * 2


async def test_a_tasks_setup_runs_in_its_image(
    server: E2bServer, backend: E2bBackend, tmp_path: Path, task: Task
) -> None:
    server.profile = IMAGE
    setup = ("cp /etc/image /testbed/from_image.txt",)
    origin = Origin(str(task.repo), task.base_commit, setup, "/testbed", task.image)
    ready = await TaskRepositories(backend, tmp_path / "root").ensure(replace(task, origin=origin))
    assert (ready.repo / "from_image.txt").read_text() == "image\n"
    assert (ready.image, ready.workdir) == (task.image, "/testbed")
    assert [machine.created["templateID"] for machine in server.ended] == ["swe-task-1"]
