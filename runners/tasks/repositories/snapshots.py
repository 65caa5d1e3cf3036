"""Snapshots of a work tree in a sandbox, as commits of git that come to the host in one bundle.

A task's base may be made by commands in a sandbox, or be only in an image. Tracked files, and new
ones that the commands made, become a commit; what else lies in an image's work tree (built
extensions, installed modules) stays there, in every sandbox of the image, and is no part of it.

A repository that is made of a snapshot takes over the objects of that snapshot only: those of
another one, such as the hidden tests, would be within an agent's reach.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from runners.sandboxes.contract import Sandbox, SandboxError
from runners.sandboxes.tree import copy_tree
from runners.tasks.pytest_mounts import pytest_environment, rewrite_paths
from runners.tasks.repositories.pinned_repositories import (
    ByteExactGit,
    SourceError,
    check_out,
    fetch_commit,
    make_git_dir,
    tidy,
)

COMMANDS_S = 600.0
"""For a task's set-up commands."""
GIT_S = 300.0
BASE, TESTS = "refs/agentrl/base", "refs/agentrl/tests"
BUNDLE = ".git/agentrl.bundle"
UNTRACKED = ".git/agentrl-untracked"
KNOWN = ".git/agentrl-known"
GIT = "git -c filter.lfs.clean= -c filter.lfs.required=false -c core.hooksPath=/dev/null"
BEGIN = f"""\
set -e
command -v git >/dev/null || {{ echo 'there is no git' >&2; exit 1; }}
[ -d .git ] || {{ echo "there is no git repository in $PWD" >&2; exit 1; }}
git ls-files --others --exclude-standard > {KNOWN}
git ls-files --others --directory --no-empty-directory > {UNTRACKED}
"""
"""Lists the contents of the work tree before any command runs."""
COMMIT = f"""\
set -e
{GIT} add --update
git ls-files --others --exclude-standard > {KNOWN}.now
if [ -s {KNOWN} ]; then grep -vxFf {KNOWN} {KNOWN}.now; else cat {KNOWN}.now; fi |
    {GIT} update-index --add --stdin
tree=$(git write-tree)
git update-ref {{ref}} "$(git commit-tree "$tree" -m snapshot </dev/null)"
"""
"""Names that need quotes are quoted in both lists, and unquoted by ``update-index``. BusyBox's grep
takes an empty file of patterns for one that is in every line.
"""
PACK = f"git bundle create {BUNDLE} {{refs}}"
"""Without ``--quiet``, which git has since 2.25: images often have an older one."""


async def begin_snapshots(sandbox: Sandbox) -> None:
    """Note what lies in the work tree; raises SandboxError if it is no git repository."""
    await _run_script(sandbox, BEGIN, "the work tree cannot be read")


async def take_snapshot(sandbox: Sandbox, ref: str) -> None:
    """Commit the work tree under a name; raises SandboxError."""
    await _run_script(sandbox, COMMIT.format(ref=ref), "the work tree cannot be committed")


@asynccontextmanager
async def fetch_snapshots(sandbox: Sandbox, *refs: str) -> AsyncIterator[tuple[Path, list[str]]]:
    """Yield the bundle of the snapshots, and the untracked paths that an image came with."""
    await _run_script(sandbox, PACK.format(refs=" ".join(refs)), "the work tree cannot be packed")
    async with sandbox.on_host(only=(BUNDLE, UNTRACKED)) as workspace:
        untracked = (workspace / UNTRACKED).read_text(errors="surrogateescape").splitlines()
        yield workspace / BUNDLE, untracked


async def run_commands(sandbox: Sandbox, commands: tuple[str, ...], workdir: str) -> None:
    """Run a task's commands, in which the repository is at ``workdir``; raises SandboxError."""
    text = rewrite_paths("\n".join(commands), workdir, sandbox.workdir)
    await _run_script(
        sandbox,
        f"set -e\n{text}",
        "the task's setup",
        shell="bash",
        deadline_s=COMMANDS_S,
    )


async def _run_script(
    sandbox: Sandbox, script: str, what: str, *, shell: str = "sh", deadline_s: float = GIT_S
) -> None:
    result = await sandbox.run(
        [shell, "-c", script], deadline_s=deadline_s, env=pytest_environment()
    )
    if result.exit_code:
        output = (result.stdout + result.stderr)[-400:].decode(errors="replace").strip()
        raise SandboxError(f"{what} ended with exit code {result.exit_code}: {output}")


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """Files by which a second snapshot differs from the first, by their paths in the repository."""

    changed: tuple[str, ...]
    deleted: tuple[str, ...]


class SnapshotReader:
    """The snapshots of one bundle."""

    def __init__(self, bundle: Path, scratch: Path) -> None:
        """``scratch`` is an empty directory. Blocks; raises SourceError and SubprocessError."""
        self._clone = scratch / "clone"
        self._scratch = scratch
        make_git_dir(scratch / "repo")
        with self._git() as git:
            git("clone", "--quiet", "--mirror", str(bundle), str(self._clone), outside=True)

    def make_repository(self, ref: str, repo: Path, *, base: Path | None) -> str:
        """Make ``repo`` a checked-out repository of a snapshot; return its commit.

        The commit is above HEAD of the pinned repository ``base``, or without history.
        """
        if base is None:
            make_git_dir(repo)
        else:
            repo.mkdir()
            copy_tree(base / ".git", repo / ".git")
        with ByteExactGit(repo) as git:
            parent = git("rev-parse", "HEAD").strip() if base is not None else None
            commit = self._commit(ref, parent, repo)
            # Only what the commit reaches comes along, not the snapshot's own commit.
            fetch_commit(git, str(self._scratch / "repo"), commit)
            check_out(git, commit)
        tidy(repo / ".git")
        return commit

    def _commit(self, ref: str, parent: str | None, repo: Path) -> str:
        """Return a new commit of a snapshot's files above a commit of ``repo``."""
        folder = self._scratch / "repo/.git/objects/info"
        (folder / "alternates").write_text(f"{repo}/.git/objects\n")
        snapshot = self._find(ref)
        with self._git() as git:
            fetch_commit(git, str(self._clone), snapshot)
            tree = git("rev-parse", f"{snapshot}^{{tree}}").strip()
            parents = ("-p", parent) if parent is not None else ()
            return git("commit-tree", tree, *parents, "-m", "Prepare").strip()

    def extract(self, before: str, after: str, target: Path) -> ChangedFiles:
        """Write the files by which ``after`` differs from ``before`` into the folder ``target``."""
        target.mkdir()
        with self._git() as git:
            one, other = self._find(before), self._find(after)
            for commit in (one, other):
                fetch_commit(git, str(self._clone), commit)
            listed = git("diff-tree", "-r", "-z", "--no-renames", "--name-status", one, other)
            words = listed.split("\0")[:-1]
            states = dict(zip(words[1::2], words[::2], strict=True))
            changed = tuple(path for path, state in states.items() if state != "D")
            git("read-tree", other)
            if changed:
                git("checkout-index", "--force", f"--prefix={target}/", "--", *changed)
        return ChangedFiles(changed, tuple(p for p, state in states.items() if state == "D"))

    def _find(self, ref: str) -> str:
        """Return the commit of a snapshot; raises SourceError."""
        with self._git() as git:
            for line in git("ls-remote", str(self._clone)).splitlines():
                commit, _, name = line.partition("\t")
                if name == ref:
                    return commit
        raise SourceError(f"the snapshot has no {ref}")

    def _git(self) -> ByteExactGit:
        return ByteExactGit(self._scratch / "repo")


@contextmanager
def read_snapshots(bundle: Path) -> Iterator[SnapshotReader]:
    """Yield the snapshots of a bundle; raises SourceError and SubprocessError."""
    try:
        with tempfile.TemporaryDirectory(prefix="agentrl-snapshots-") as scratch:
            yield SnapshotReader(bundle, Path(scratch))
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(f"cannot read the snapshot of a work tree: {error}") from error


EXCLUDED_LENGTH = 32_768
"""Characters of all excluded paths: they are words of one command line."""


def exclude_paths(repo: Path, paths: Iterable[str]) -> None:
    """Let git ignore paths that an image has besides the repository's own files.

    ``paths`` are as ``git ls-files`` prints them: quoted where they are unusual; such are left out.
    """
    plain, length = [], 0
    for path in paths:
        length += len(path) + 16
        if not path.startswith('"') and "__pycache__" not in path and length < EXCLUDED_LENGTH:
            plain.append(path)
    escaped = ("/" + "".join(f"\\{c}" if c in "*?[\\ " else c for c in path) for path in plain)
    (repo / ".git/info/exclude").write_text("".join(f"{path}\n" for path in escaped))


def read_excluded_paths(repo: Path) -> tuple[str, ...]:
    """Return the paths that ``exclude_paths`` wrote."""
    file = repo / ".git/info/exclude"
    if not file.exists():
        return ()
    return tuple(
        "".join(line[1:].replace("\\\\", "\0").split("\\")).replace("\0", "\\").rstrip("/")
        for line in file.read_text().splitlines()
        if line.startswith("/")
    )
