"""Task repositories from which agents and graders start, each made at its first use.

A task's setup commands (``pre_commands``, ``before_repo_set_cmd``) run once, in a sandbox without
network, before any agent sees the problem. Their changes become a commit above the base, so they
are no part of a patch. Further history that the commands needed is not kept.

A repository may be only in its image: the work tree there, after the setup commands, becomes a
repository of one commit without history, as what led to it may hold the fix.

The fix can be had elsewhere too: repositories of real projects are public, and so are their later
releases. ``denied_hosts`` names what an agent's sandbox must not reach.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from runners.sandboxes.contract import Sandbox, SandboxBackend, SandboxError, SandboxSpec
from runners.sandboxes.wrappers import open_sandbox
from runners.system.processes import atomic_directory
from runners.tasks.contract import HarborVerifier, Origin, Task, UnittestIds
from runners.tasks.harbor.environment import (
    describe_environment,
    ensure_environment,
    find_directory,
)
from runners.tasks.pytest_mounts import (
    agent_environment,
    agent_mounts,
    filter_mounts,
    pytest_mounts,
)
from runners.tasks.repositories.pinned_repositories import SourceError, make_pinned_repository
from runners.tasks.repositories.snapshots import (
    BASE,
    TESTS,
    begin_snapshots,
    exclude_paths,
    fetch_snapshots,
    read_snapshots,
    run_commands,
    take_snapshot,
)

VERSION = 2
"""Version of the repositories: raise it when the same origin gives another one."""
COMMIT = re.compile(r"\b[0-9a-f]{40}\b")
HEAD = "HEAD.txt"
"""File beside a prepared work tree with its commit."""
HIDDEN = "hidden"
"""Folder beside a prepared work tree with the hidden tests."""
DELETED = "deleted"
"""File beside it with the paths that the hidden tests remove."""


def describe_workspace(task: Task) -> SandboxSpec:
    """Return the sandbox of a task that is ready, which has no name and no network yet: its files,
    image, programs and variables. Raises SandboxError.
    """
    if isinstance(task.grading, HarborVerifier):
        return describe_environment(task)
    return SandboxSpec(
        "",
        task.repo,
        "none",
        mounts=agent_mounts(task),
        env=agent_environment(task),
        image=task.image,
        workdir=task.workdir,
        removed=task.hidden_paths,
    )


async def use_repository_as_is(task: Task) -> Task:
    """Return the task: its repository exists already."""
    return task


@dataclass(frozen=True, slots=True)
class MadeRepository:
    """A repository from which agents and graders start."""

    repo: Path
    commit: str
    hidden_tests: Path | None = None


class TaskRepositories:
    """Makes repositories below ``root``, each once; a caller that is cancelled stops no other."""

    def __init__(self, backend: SandboxBackend, root: Path) -> None:
        self._backend = backend
        self._root = root
        self._making: dict[Origin, asyncio.Task[MadeRepository]] = {}

    async def ensure(self, task: Task) -> Task:
        """Return the task with an existing repository; raises SandboxError.

        Where sandboxes have no images, the task's image is removed.
        """
        if isinstance(task.grading, HarborVerifier):
            return await ensure_environment(task, self._backend)
        if task.image is not None and not self._backend.has_images:
            origin = None if task.origin is None else replace(task.origin, image=None)
            task = replace(task, image=None, workdir=None, hidden_paths=(), origin=origin)
        if task.origin is None:
            return task
        making = self._making.get(task.origin)
        if making is None or (making.done() and (making.cancelled() or making.exception())):
            making = asyncio.create_task(self._make(task.origin), name=f"workspace-{task.id}")
            self._making[task.origin] = making
        # Shielded: the making goes on for the other callers when this one is cancelled.
        made = await asyncio.shield(making)
        return replace(
            task,
            repo=made.repo,
            base_commit=made.commit,
            hidden_tests=made.hidden_tests,
            origin=None,
        )

    async def _make(self, origin: Origin) -> MadeRepository:
        base = None
        try:
            if origin.source is not None:
                base = self._root / f"{VERSION}-{origin.base_commit}"
                await asyncio.to_thread(
                    make_pinned_repository, origin.source, origin.base_commit, base
                )
                if not origin.setup and not origin.test_setup:
                    return MadeRepository(base, origin.base_commit)
            target = self._root / f"{VERSION}-setup-{_hash_origin(origin)}"
            if not target.exists():
                await self._prepare(origin, base, target)
        except SourceError as error:
            raise SandboxError(str(error)) from error
        hidden = target / HIDDEN
        return MadeRepository(
            target / "repo", (target / HEAD).read_text(), hidden if hidden.exists() else None
        )

    async def _prepare(self, origin: Origin, base: Path | None, target: Path) -> None:
        """Run the commands in a sandbox; store their work tree, and the hidden tests apart."""
        async with self._open_sandbox(origin, target.name) as sandbox:
            await begin_snapshots(sandbox)
            await run_commands(sandbox, origin.setup, origin.workdir)
            refs = [BASE]
            await take_snapshot(sandbox, BASE)
            if origin.test_setup:
                await run_commands(sandbox, origin.test_setup, origin.workdir)
                await take_snapshot(sandbox, TESTS)
                refs.append(TESTS)
            async with fetch_snapshots(sandbox, *refs) as (bundle, untracked):
                await asyncio.to_thread(_store, bundle, untracked, base, target, bool(refs[1:]))

    @asynccontextmanager
    async def _open_sandbox(self, origin: Origin, name: str) -> AsyncIterator[Sandbox]:
        self._root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".setup.", dir=self._root) as scratch:
            source = None
            if origin.source is not None:
                source = Path(scratch) / "with-history"
                # Commands may use other commits that they name, for example to check out a test.
                also = tuple(
                    dict.fromkeys(COMMIT.findall("\n".join((*origin.setup, *origin.test_setup))))
                )
                await asyncio.to_thread(
                    make_pinned_repository, origin.source, origin.base_commit, source, also=also
                )
            spec = SandboxSpec(
                name,
                source,
                "none",
                mounts=filter_mounts(pytest_mounts(), origin.image),
                image=origin.image,
                workdir=origin.workdir if origin.image else None,
            )
            async with open_sandbox(self._backend, spec) as sandbox:
                yield sandbox


def _hash_origin(origin: Origin) -> str:
    """Return a digest of all that decides the prepared work tree."""
    image = [origin.image] if origin.image else []
    key = [origin.base_commit, origin.workdir, *origin.setup, "", *origin.test_setup, *image]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:40]


def _store(
    bundle: Path, untracked: list[str], base: Path | None, target: Path, has_tests: bool
) -> None:
    with atomic_directory(target) as folder, read_snapshots(bundle) as snapshots:
        commit = snapshots.make_repository(BASE, folder / "repo", base=base)
        exclude_paths(folder / "repo", untracked)
        (folder / HEAD).write_text(commit)
        if has_tests:
            difference = snapshots.extract(BASE, TESTS, folder / HIDDEN)
            (folder / DELETED).write_text("".join(f"{path}\n" for path in difference.deleted))


REPOSITORY_HOSTS = ("github.com", "githubusercontent.com", "githubassets.com", "ghcr.io")
"""Of SWE-bench's and SWE-bench-Pro's repositories, with their subdomains."""
PACKAGE_INDEXES = (
    *("pypi.org", "pythonhosted.org", "npmjs.org", "npmjs.com", "yarnpkg.com"),
    *("golang.org", "crates.io", "anaconda.org", "conda.io", "jsdelivr.net", "unpkg.com"),
)


def denied_hosts(task: Task) -> tuple[str, ...]:
    """Return them, each with its subdomains."""
    if isinstance(task.grading, UnittestIds):
        return ()
    allowed = _task_hosts(task)
    own = urlsplit(task.origin.source).hostname if task.origin is not None else None
    denied = (*REPOSITORY_HOSTS, *PACKAGE_INDEXES, *((own,) if own else ()))
    return tuple(host for host in denied if host not in allowed)


def _task_hosts(task: Task) -> tuple[str, ...]:
    """Return the hosts that a Harbor task itself lets its agent reach, by name."""
    if not isinstance(task.grading, HarborVerifier):
        return ()
    return find_directory(task).config.agent_network.hosts
