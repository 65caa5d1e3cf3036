"""Snapshots of a work tree in a sandbox, as commits of git that come to the host in one bundle.

A task's base may be made by commands in a sandbox, or be only in an image. Tracked files, and new
ones that the commands made, become a commit; what else lies in an image's work tree (built
extensions, installed modules) stays there, in every sandbox of the image, and is no part of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from runners.sandboxes.contract import Sandbox, SandboxError
from runners.tasks.pytest_mounts import pytest_environment, rewrite_paths

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
