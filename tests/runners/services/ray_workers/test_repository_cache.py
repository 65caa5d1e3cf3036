"""Repositories that are sent to a node: whole, once, and the same commit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxError
from runners.services.ray_workers.errors import WorkerError
from runners.services.ray_workers.repository_cache import RepositoryCache, pack_repository
from runners.tasks.contract import Origin, Task
from runners.tasks.patches.workspace_diff import diff_workspace
from tests.runners.tasks.example_repositories import FILES, git, make_task


async def make_elsewhere(task: Task) -> Task:
    return replace(task, repo=Path("/made"))


async def test_a_repository_arrives_whole_and_is_downloaded_once(tmp_path: Path) -> None:
    task, asked = make_task(tmp_path / "driver"), []

    async def fetch(commit: str) -> bytes:
        asked.append(commit)
        await asyncio.sleep(0)
        return pack_repository(task.repo)

    repositories = RepositoryCache(tmp_path / "node", fetch, make_elsewhere)
    one, two = await asyncio.gather(repositories.ready(task), repositories.ready(task))
    assert one == two
    assert one.repo.is_relative_to(tmp_path / "node")
    assert asked == [task.base_commit]
    assert {name: (one.repo / name).read_text() for name in FILES} == FILES
    assert git(one.repo, "rev-parse", "HEAD") == task.base_commit
    assert git(one.repo, "status", "--porcelain") == ""
    again = RepositoryCache(tmp_path / "node", fetch, make_elsewhere)  # the next run on this node
    assert await again.ready(task) == one
    assert asked == [task.base_commit]


async def test_a_patch_against_it_is_the_same_as_on_the_drivers_machine(tmp_path: Path) -> None:
    task = make_task(tmp_path / "driver")

    async def fetch(commit: str) -> bytes:
        return pack_repository(task.repo)

    there = await RepositoryCache(tmp_path / "node", fetch, make_elsewhere).ready(task)
    patches = []
    for each in (task, there):
        (each.repo / "calc" / "add.py").write_text("changed\n")
        patches.append(diff_workspace(each, each.repo))
    assert patches[0].diff == patches[1].diff != b""


async def test_a_failed_download_leaves_nothing_and_is_retried(tmp_path: Path) -> None:
    task, answers = make_task(tmp_path / "driver"), [b"no archive", None]

    async def fetch(commit: str) -> bytes:
        answer = answers.pop(0)
        if answer is None:
            raise WorkerError("the driver is gone")
        return answer

    repositories = RepositoryCache(tmp_path / "node", fetch, make_elsewhere)
    with pytest.raises(SandboxError, match="cannot be unpacked"):
        await repositories.ready(task)
    with pytest.raises(WorkerError):
        await repositories.ready(task)
    assert not list((tmp_path / "node").iterdir())


async def test_a_repository_with_an_address_is_made_on_the_node(tmp_path: Path) -> None:
    async def fetch(commit: str) -> bytes:
        raise AssertionError(commit)

    task = replace(make_task(tmp_path), origin=Origin("https://example.org/r.git", "0" * 40))
    made = await RepositoryCache(tmp_path / "node", fetch, make_elsewhere).ready(task)
    assert made.repo == Path("/made")
