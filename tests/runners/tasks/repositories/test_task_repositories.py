"""Task repositories: one commit and its history, and nothing later in any part of git."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.tree import copy_tree, remove_tree
from runners.tasks.contract import Origin, ScriptGrading, Task, VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.grading.graders.task_grader import TaskGrader
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.workspace_diff import diff_workspace
from runners.tasks.pytest_mounts import agent_environment, agent_mounts
from runners.tasks.repositories.pinned_repositories import SourceError, make_pinned_repository
from runners.tasks.repositories.task_repositories import TaskRepositories
from tests.runners.tasks.example_repositories import FIX, git, make_task, result_of


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Return a task whose source has later commits in every part of git that can hold them."""
    task = make_task(tmp_path_factory.mktemp("source"))
    repo = task.repo
    past = git(repo, "rev-parse", "HEAD")
    git(repo, "commit", "-q", "--allow-empty", "-m", "base")
    base = git(repo, "rev-parse", "HEAD")
    (repo / "calc/add.py").write_text(FIX)
    (repo / "tests/test_add.py").write_text("# future tests\n")
    git(repo, "commit", "-q", "-a", "-m", "the fix")
    git(repo, "tag", "-a", "v2", "-m", "release")
    git(repo, "branch", "release")
    git(repo, "notes", "add", "-m", "fixed by changing the sign")
    (repo / "calc/add.py").write_text("stashed\n")
    git(repo, "stash", "-q")
    git(repo, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(repo, "checkout", "-q", "--detach", base)
    git(repo, "gc", "-q")
    assert past != base
    origin = Origin(str(repo), base)
    return replace(task, base_commit=base, origin=origin, repo=Path("not there yet"))


def objects(repo: Path) -> set[str]:
    listed = git(repo, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    return set(listed.split())


async def test_later_commits_are_absent_and_earlier_ones_present(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    ready = await TaskRepositories(backend, tmp_path / "root").ensure(task)
    repo = ready.repo
    reachable = git(repo, "rev-list", "--objects", "--no-object-names", task.base_commit)
    assert objects(repo) == set(reachable.split())
    assert git(repo, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert git(repo, "rev-parse", "HEAD") == task.base_commit
    assert git(repo, "rev-list", "--count", "HEAD") == "2"
    assert git(repo, "status", "--porcelain") == ""
    assert git(repo, "remote") == git(repo, "reflog") == git(repo, "stash", "list") == ""
    text = "".join(
        path.read_text() for path in repo.glob(".git/*") if path.suffix != "" or path.name.isupper()
    )
    assert "release" not in text
    assert str(task.origin.source if task.origin else "") not in (repo / ".git/config").read_text()


async def test_agents_and_graders_work_on_it(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    repositories = TaskRepositories(backend, tmp_path / "root")
    ready = await repositories.ensure(task)
    copy_tree(ready.repo, tmp_path / "workspace")
    (tmp_path / "workspace/calc/add.py").write_text(FIX)
    patch = diff_workspace(ready, tmp_path / "workspace")
    assert patch.files == ("calc/add.py",)
    grader = TaskGrader(SandboxGrader(backend), repositories.ensure)
    verdict = await grader.grade(task, RolloutResult.of_patch(patch), name="g", deadline_s=30)
    assert verdict.kind is VerdictKind.SOLVED, verdict


async def test_a_repository_is_made_once_and_a_second_time_after_a_failure(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    repositories = TaskRepositories(backend, tmp_path / "root")
    one, other = await asyncio.gather(repositories.ensure(task), repositories.ensure(task))
    assert one == other
    moved = tmp_path / "moved"
    assert task.origin is not None
    broken = replace(task, origin=Origin(str(moved), task.base_commit, ("true",)))
    for _ in range(2):
        with pytest.raises(SandboxError):
            await TaskRepositories(backend, tmp_path / "other").ensure(broken)
    copy_tree(Path(str(task.origin.source)), moved)
    assert (await TaskRepositories(backend, tmp_path / "other").ensure(broken)).repo.is_dir()


async def test_a_missing_repository_is_infra(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    repositories = TaskRepositories(backend, tmp_path / "root")
    lost = replace(task, origin=Origin(str(tmp_path / "gone"), task.base_commit))
    grader = TaskGrader(SandboxGrader(backend), repositories.ensure)
    verdict = await grader.grade(lost, result_of(b""), name="g", deadline_s=30)
    assert verdict.kind is VerdictKind.INFRA
    assert "gone" in verdict.reason


def test_bundles_and_mirrors_are_sources_too(task: Task, tmp_path: Path) -> None:
    assert task.origin is not None
    source = Path(str(task.origin.source))
    git(source, "bundle", "create", "-q", str(tmp_path / "x.bundle"), "--all")
    git(source, "clone", "-q", "--mirror", str(source), str(tmp_path / "x.git"))
    for name in ("x.bundle", "x.git"):
        make_pinned_repository(str(tmp_path / name), task.base_commit, tmp_path / f"from-{name}")
        assert git(tmp_path / f"from-{name}", "rev-parse", "HEAD") == task.base_commit
    with pytest.raises(SourceError, match=r"no commit|not our ref|failed"):
        make_pinned_repository(str(source), "f" * 40, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert not list(tmp_path.glob(".none*"))


def test_nothing_refers_to_the_source_or_its_work_trees(task: Task, tmp_path: Path) -> None:
    assert task.origin is not None
    original, source = tmp_path / "original", tmp_path / "source"
    copy_tree(Path(str(task.origin.source)), original)
    git(original, "clone", "-q", "--shared", str(original), str(source))
    git(source, "worktree", "add", "-q", "-b", "side", str(tmp_path / "aside"), "origin/release")
    assert (source / ".git/objects/info/alternates").exists()
    made = tmp_path / "made"
    make_pinned_repository(str(source), task.base_commit, made)
    remove_tree(original)
    remove_tree(source)
    git(made, "fsck", "--full", "--strict")
    assert git(made, "worktree", "list").count("\n") == 0
    assert git(made, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    for name in ("worktrees", "objects/info/alternates", "packed-refs", "logs", "FETCH_HEAD"):
        assert not (made / ".git" / name).exists(), name
    assert objects(made) == set(
        git(made, "rev-list", "--objects", "--no-object-names", task.base_commit).split()
    )


def test_files_have_the_blobs_bytes_despite_attributes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    git(tmp_path, "init", "-q", str(source))
    (source / "a.txt").write_bytes(b"one\ntwo\n")
    (source / ".gitattributes").write_text("*.txt text eol=crlf\n*.bin filter=lfs\n")
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "x")
    make_pinned_repository(str(source), git(source, "rev-parse", "HEAD"), tmp_path / "made")
    assert (tmp_path / "made/a.txt").read_bytes() == b"one\ntwo\n"
    assert not (tmp_path / "made/.git/info/attributes").exists()


async def test_the_setup_is_part_of_the_base_and_its_own_commits_are_removed(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    assert task.origin is not None
    fix = git(Path(str(task.origin.source)), "rev-parse", "v2^{commit}")
    setup = (
        f"cd /repo && git checkout -q {fix} -- tests/test_add.py",
        "mkdir build; echo > build/x; echo > made",
    )
    task = replace(task, origin=replace(task.origin, setup=setup, workdir="/repo"))
    ready = await TaskRepositories(backend, tmp_path / "root").ensure(task)
    assert (ready.repo / "tests/test_add.py").read_text() == "# future tests\n"
    assert git(ready.repo, "log", "--format=%s").split("\n")[:2] == ["Prepare", "base"]
    assert git(ready.repo, "status", "--porcelain") == ""
    assert ready.base_commit == git(ready.repo, "rev-parse", "HEAD")
    reachable = git(ready.repo, "rev-list", "--objects", "--no-object-names", "HEAD")
    assert objects(ready.repo) == set(reachable.split())
    assert fix not in reachable
    copy_tree(ready.repo, tmp_path / "workspace")
    (tmp_path / "workspace/calc/add.py").write_text(FIX)
    assert diff_workspace(ready, tmp_path / "workspace").files == ("calc/add.py",)
    again = await TaskRepositories(backend, tmp_path / "root").ensure(task)
    assert again == ready


async def test_the_output_of_a_failed_setup_is_in_the_message(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    assert task.origin is not None
    failing = ("echo no such tool >&2; false", "true")
    task = replace(task, origin=replace(task.origin, setup=failing))
    with pytest.raises(SandboxError, match="exit code 1: no such tool"):
        await TaskRepositories(backend, tmp_path / "root").ensure(task)


async def test_an_agent_can_run_the_tests(
    backend: LocalBackend, task: Task, tmp_path: Path
) -> None:
    ready = await TaskRepositories(backend, tmp_path / "root").ensure(task)
    ready = replace(ready, grading=ScriptGrading("eval_cmd", "python -m pytest", "/repo"))
    spec = SandboxSpec(
        "agent", ready.repo, "none", mounts=agent_mounts(ready), env=agent_environment(ready)
    )
    sandbox = await backend.create(spec)
    try:
        command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
        result = await sandbox.run(command, deadline_s=300)
    finally:
        await sandbox.close()
    assert b"1 failed, 1 passed" in result.stdout, result
    assert (agent_mounts(task), agent_environment(task)) == ({}, {})
