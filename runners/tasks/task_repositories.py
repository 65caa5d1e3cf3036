"""Task repositories from which agents and graders start, each made at its first use.

A task's setup commands (``pre_commands``, ``before_repo_set_cmd``) run once, in a sandbox without
network, before any agent sees the problem. Their changes become a commit above the base, so they
are no part of a patch. Further history that the commands needed is not kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from runners.processes.atomic_write import atomic_directory
from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxError, SandboxSpec
from runners.sandboxes.discard import remove_tree
from runners.sandboxes.tree import copy_tree
from runners.sandboxes.wrappers import open_sandbox
from runners.tasks.contract import Origin, Task
from runners.tasks.pinned_repositories import SourceError, commit_all, make_pinned_repository
from runners.tasks.pytest_mounts import (
    filter_mounts,
    pytest_environment,
    pytest_mounts,
    rewrite_paths,
)

VERSION = 1
"""Version of the repositories: raise it when the same origin gives another one."""
SETUP_S = 600.0
COMMIT = re.compile(r"\b[0-9a-f]{40}\b")
HEAD = "HEAD.txt"
"""File beside a prepared work tree with its commit."""


async def use_repository_as_is(task: Task) -> Task:
    """Return the task: its repository exists already."""
    return task


class TaskRepositories:
    """Makes repositories below ``root``, each once; a caller that is cancelled stops no other."""

    def __init__(self, backend: SandboxBackend, root: Path) -> None:
        self._backend = backend
        self._root = root
        self._making: dict[Origin, asyncio.Task[tuple[Path, str]]] = {}

    async def ensure(self, task: Task) -> Task:
        """Return the task with an existing repository; raises SandboxError.

        Where sandboxes have no images, the task's image is removed.
        """
        if task.image is not None and not self._backend.has_images:
            origin = None if task.origin is None else replace(task.origin, image=None)
            task = replace(task, image=None, workdir=None, origin=origin)
        if task.origin is None:
            return task
        making = self._making.get(task.origin)
        if making is None or (making.done() and (making.cancelled() or making.exception())):
            making = asyncio.create_task(self._make(task.origin), name=f"workspace-{task.id}")
            self._making[task.origin] = making
        # Shielded: the making goes on for the other callers when this one is cancelled.
        repo, commit = await asyncio.shield(making)
        return replace(task, repo=repo, base_commit=commit, origin=None)

    async def _make(self, origin: Origin) -> tuple[Path, str]:
        base = self._root / f"{VERSION}-{origin.base_commit}"
        try:
            await asyncio.to_thread(make_pinned_repository, origin.source, origin.base_commit, base)
        except SourceError as error:
            raise SandboxError(str(error)) from error
        if not origin.setup:
            return base, origin.base_commit
        image = [origin.image] if origin.image else []
        key = json.dumps([origin.base_commit, origin.workdir, *origin.setup, *image])
        target = self._root / f"{VERSION}-setup-{hashlib.sha256(key.encode()).hexdigest()[:40]}"
        if not target.exists():
            await self._run_setup(origin, base, target)
        return target / "repo", (target / HEAD).read_text()

    async def _run_setup(self, origin: Origin, base: Path, target: Path) -> None:
        """Run the setup commands; store their work tree as a commit above the base."""
        with tempfile.TemporaryDirectory(prefix=".setup.", dir=self._root) as scratch:
            source = Path(scratch) / "with-history"
            # Commands may use other commits that they name, for example to check out a test file.
            also = tuple(dict.fromkeys(COMMIT.findall("\n".join(origin.setup))))
            await asyncio.to_thread(
                make_pinned_repository, origin.source, origin.base_commit, source, also=also
            )
            spec = SandboxSpec(
                target.name,
                source,
                "none",
                mounts=filter_mounts(pytest_mounts(), origin.image),
                image=origin.image,
                workdir=origin.workdir if origin.image else None,
            )
            async with open_sandbox(self._backend, spec) as sandbox:
                await _run_commands(origin, sandbox)
                async with sandbox.on_host(leave_out=(".git",)) as workspace:
                    await asyncio.to_thread(_store_work_tree, workspace, base, target)


async def _run_commands(origin: Origin, sandbox: Sandbox) -> None:
    commands = rewrite_paths("\n".join(origin.setup), origin.workdir, sandbox.workdir)
    result = await sandbox.run(
        ["bash", "-c", f"set -e\n{commands}"],
        deadline_s=SETUP_S,
        env=pytest_environment(),
    )
    if result.exit_code:
        output = (result.stdout + result.stderr)[-400:].decode(errors="replace").strip()
        raise SandboxError(f"the task's setup ended with exit code {result.exit_code}: {output}")


def _store_work_tree(workspace: Path, base: Path, target: Path) -> None:
    try:
        with atomic_directory(target) as folder:
            repo = folder / "repo"
            copy_tree(workspace, repo)
            remove_tree(repo / ".git")
            copy_tree(base / ".git", repo / ".git")
            (folder / HEAD).write_text(commit_all(repo, "Prepare"))
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"cannot store a prepared work tree: {error}") from error
