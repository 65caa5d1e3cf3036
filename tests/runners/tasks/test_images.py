"""Images of rows: they reach the sandboxes that have images, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.sandboxes.local.backend import LocalBackend
from runners.tasks.contract import Origin
from runners.tasks.pytest_mounts import (
    SITE,
    agent_environment,
    agent_mounts,
    filter_mounts,
    pytest_mounts,
)
from runners.tasks.repositories.task_repositories import TaskRepositories
from runners.tasks.sets.dataset_report import load_dataset
from tests.fakes.rollout_parts import FolderBackend
from tests.runners.tasks.dataset_rows import CLASSIC, config, write
from tests.runners.tasks.example_repositories import make_task

IMAGE = "swebench/sweb.eval.x86_64.o_1776_r-1:latest"


@pytest.mark.parametrize(
    "row",
    [
        {"image": IMAGE},
        {"metadata": {"remote_env_info": {"image": IMAGE}}},
        {"remote_env_info": {"image_url": IMAGE}},
    ],
)
def test_a_task_has_the_image_and_work_directory_of_its_row(
    tmp_path: Path, row: dict[str, Any]
) -> None:
    (tmp_path / "repo").mkdir()
    rows = [{**CLASSIC, "repo_path": "repo", **row}]
    (task,) = load_dataset(config(file := write(tmp_path / "rows.jsonl", rows)), str(file))
    assert (task.image, task.workdir) == (IMAGE, "/testbed")
    assert task.origin is not None
    assert task.origin.image == IMAGE


def test_without_an_image_in_the_row_the_configuration_decides(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    file = write(tmp_path / "rows.jsonl", [{**CLASSIC, "repo_path": "repo"}])
    (task,) = load_dataset(config(file), str(file))
    assert (task.image, task.workdir) == (None, None)


@pytest.mark.integration
async def test_sandboxes_without_images_never_see_one(
    backend: LocalBackend, tmp_path: Path
) -> None:
    task = replace(make_task(tmp_path / "task"), image=IMAGE, workdir="/testbed")
    ready = await TaskRepositories(backend, tmp_path / "root").ensure(task)
    assert (ready.image, ready.workdir) == (None, None)
    origin = Origin(str(task.repo), task.base_commit, image=IMAGE)
    made = await TaskRepositories(backend, tmp_path / "root").ensure(replace(task, origin=origin))
    assert (made.image, made.workdir) == (None, None)


async def test_sandboxes_with_images_see_it(tmp_path: Path) -> None:
    task = replace(make_task(tmp_path / "task"), image=IMAGE, workdir="/testbed")
    ready = await TaskRepositories(FolderBackend(tmp_path), tmp_path / "root").ensure(task)
    assert ready == task


def test_an_image_uses_its_own_pytest(tmp_path: Path) -> None:
    task = replace(make_task(tmp_path / "task"), image=IMAGE)
    assert (agent_mounts(task), agent_environment(task)) == ({}, {})
    mounts = {**pytest_mounts(), "/opt/agentrl/grade/runner.py": Path("runner.py")}
    assert list(filter_mounts(mounts, IMAGE)) == ["/opt/agentrl/grade/runner.py"]
    assert filter_mounts(mounts, None) == mounts
    assert any(inside.startswith(f"{SITE}/") for inside in mounts)
