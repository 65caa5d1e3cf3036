"""Prepare a Harbor task's environment: an image, or a layout of files where there are no images.

A layout is a directory ``root`` with the files that the task's Dockerfile adds to its image, at
their paths inside. Layouts are kept in the user's cache by the task's digest.

Invariant: of a task's directory an agent gets the environment alone, never tests and solution.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

from conf.cache import cache_root
from runners.sandboxes.contract import SandboxBackend, SandboxError, SandboxSpec
from runners.sandboxes.tree import copy_tree
from runners.system.processes import atomic_directory
from runners.tasks.contract import Task
from runners.tasks.harbor.directory import (
    COMPOSE,
    DOCKERFILE,
    TaskDirectory,
    hash_tree,
    reread_directory,
)
from runners.tasks.harbor.dockerfile import (
    FileLayout,
    ImageOnlyError,
    check_place,
    copy_sources,
    is_plain_image,
    plan_layout,
)
from runners.tasks.harbor.task_config import NetworkRule, resolve_variables
from runners.tasks.pytest_mounts import agent_environment, agent_mounts

VERSION = 1
"""Version of the layouts: raise it when the same task gives another one."""
LOGS = ("logs/agent", "logs/artifacts")
"""Directories that every agent may write."""
IMAGE = "agentrl-harbor"
"""Name of the images that are built; their tags are digests of their build contexts."""


async def ensure_environment(task: Task, backend: SandboxBackend) -> Task:
    """Return the task with its image or its layout made; raises SandboxError."""
    try:
        found = await asyncio.to_thread(find_directory, task)
        if not backend.has_images:
            await asyncio.to_thread(make_layout, found)
            return replace(task, image=None)
        await asyncio.to_thread(make_overlay, found)
        if found.dockerfile is None:
            return task
        tag = f"{IMAGE}:{await asyncio.to_thread(hash_tree, found.environment)}"
    except (ValueError, OSError) as error:
        raise SandboxError(f"{task.id}: {error}") from error
    deadline_s = found.config.environment.build_timeout_sec
    await backend.build_image(found.environment, tag, deadline_s=deadline_s)
    return replace(task, image=tag)


def find_directory(task: Task) -> TaskDirectory:
    """Return the directory of a task; raises ValueError if it has changed."""
    return reread_directory(task.repo, task.base_commit)


def layout_root(found: TaskDirectory) -> Path:
    """Return the path of a task's layout."""
    return cache_root() / "harbor" / f"layout-{VERSION}-{found.digest}" / "root"


def overlay_root(found: TaskDirectory) -> Path:
    """Return the path of the files that a task adds to a prebuilt image."""
    return cache_root() / "harbor" / f"overlay-{VERSION}-{found.digest}" / "root"


def environment_variables(found: TaskDirectory, image: str | None) -> dict[str, str]:
    """Return the variables of every command: the Dockerfile's where there is no image, the task's.

    Raises ValueError.
    """
    own = plan(found).env if image is None else {}
    return {**own, **resolve_variables("environment", found.config.environment.env, os.environ)}


def plan(found: TaskDirectory) -> FileLayout:
    """Return a task's environment as files and variables; raises ImageOnlyError."""
    if found.dockerfile is not None:
        layout = plan_layout(found.dockerfile.read_text("utf-8", "replace"))
    else:
        image = found.config.environment.docker_image or ""
        if not is_plain_image(image):
            raise ImageOnlyError(f"its image is {image}")
        layout = FileLayout(copies=[(name, f"{found.workdir}/") for name in _overlaid(found)])
    layout.workdir = found.workdir
    check_place(found.workdir)
    if (found.environment / ".dockerignore").exists():
        raise ImageOnlyError("its environment has a .dockerignore")
    return layout


def _overlaid(found: TaskDirectory) -> list[str]:
    """Return the entries of environment/ that are put into a prebuilt image's workdir.

    There are none beside a Dockerfile or a compose file: those describe an image that has them.
    """
    if found.dockerfile is not None or not found.environment.is_dir():
        return []
    names = sorted(entry.name for entry in found.environment.iterdir())
    return [] if {DOCKERFILE, *COMPOSE}.intersection(names) else names


def make_layout(found: TaskDirectory) -> None:
    """Make a task's layout unless it is there; raises ImageOnlyError, ValueError and OSError."""
    layout, root = plan(found), layout_root(found)
    if root.exists():
        return
    with atomic_directory(root.parent) as folder:
        for directory in (*LOGS, layout.workdir.strip("/")):
            (folder / "root" / directory).mkdir(parents=True)
        for source, target in layout.copies:
            check_place(target.rstrip("/"))
            _copy(copy_sources(found.environment, source), folder / "root", target)


def make_overlay(found: TaskDirectory) -> None:
    """Make what a task adds to an image unless it is there; raises OSError."""
    root = overlay_root(found)
    if root.exists():
        return
    with atomic_directory(root.parent) as folder:
        for directory in LOGS:
            (folder / "root" / directory).mkdir(parents=True)
        if names := _overlaid(found):
            sources = [found.environment / name for name in names]
            _copy(sources, folder / "root", f"{found.workdir}/")


def _copy(sources: list[Path], root: Path, target: str) -> None:
    """Copy as COPY does: a directory's content, a file into a directory or under a new name."""
    into = root / target.strip("/")
    many = len(sources) > 1 or target.endswith("/") or into.is_dir()
    for source in sources:
        if source.is_dir() and not source.is_symlink():
            into.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, into, symlinks=True, dirs_exist_ok=True)
            continue
        place = into / source.name if many else into
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, place, follow_symlinks=False)


def list_trees(root: Path) -> dict[str, Path]:
    """Return the top directories of a layout or overlay by their path inside."""
    return {f"/{entry.name}": entry for entry in sorted(root.iterdir())}


def split_root(root: Path, workdir: str) -> tuple[Path, dict[str, Path]]:
    """Return the workspace of a layout, and its other top directories by their path inside."""
    trees = list_trees(root)
    return root / workdir.strip("/"), {top: trees[top] for top in trees if top != workdir}


def merge_root(base: Path, changes: Path, target: Path) -> None:
    """Make a layout from another one and files that replace some of it; raises OSError."""
    copy_tree(base, target)
    shutil.copytree(changes, target, symlinks=True, dirs_exist_ok=True)


def describe_environment(task: Task) -> SandboxSpec:
    """Return the sandbox of a task whose environment is made, which has no name and no network yet;
    raises SandboxError.
    """
    try:
        found = find_directory(task)
        env = {**agent_environment(task), **environment_variables(found, task.image)}
    except (ValueError, OSError) as error:
        raise SandboxError(f"{task.id}: {error}") from error
    source: Path | None = None
    if task.image is None:
        source, trees = split_root(layout_root(found), found.workdir)
    else:
        trees = list_trees(overlay_root(found))
    return SandboxSpec(
        "",
        source,
        "none",
        mounts=agent_mounts(task),
        env=env,
        image=task.image,
        workdir=found.workdir,
        trees=trees,
        egress_hosts=allowed_hosts(found.config.agent_network),
    )


def allowed_hosts(rule: NetworkRule) -> tuple[str, ...] | None:
    """Return the hosts that a task allows; None: all."""
    return {"public": None, "no-network": (), "allowlist": rule.hosts}[rule.mode]
