"""Capture of an agent's changes as a diff against the pinned base commit, and its record.

The work tree is compared, so commits, the index, untracked files, deletions, modes and binaries all
count. The agent's ``.git`` is never read: git runs with a repository of ours (configuration,
attributes, index, new objects) that borrows the pristine repository's objects. So an agent's hooks,
filters, fsmonitor, attributes and nested repositories have no effect. No symbolic link is followed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError
from runners.sandboxes.contract import OversizedError, Sandbox
from runners.tasks.contract import Patch, Task
from runners.tasks.diffs import unquote_path
from runners.tasks.git import (
    ATTRIBUTES,
    describe_failure,
    git_environment,
    init_git_dir,
    run_git,
)
from runners.tasks.protection import FILE_LIMIT, escape_path, find_tampered, walk_entries

DIFF_LIMIT = 2 << 20
"""Bytes; a larger patch is refused. SWE-bench's largest reference patch has 0.2 MB."""
ENTRY_LIMIT = 50_000
"""Limit of directories and files beyond the repository's own."""
EXCLUDED_CACHES = (":(exclude,glob)**/__pycache__/**", ":(exclude,glob)**/*.pyc")
"""Pathspecs of files that Python writes by itself."""
BYTES, REFUSED = "patch_base64", "patch_refused"
"""Keys of a record's ``extra``; each is set only if the text alone would lose it."""


class PatchError(AgentrlError):
    """The change could not be captured, and not through the agent's fault."""


async def capture_patch(task: Task, sandbox: Sandbox) -> Patch:
    """Return the patch of a sandbox in which nothing runs any more.

    A work tree that is too large to copy gives a refused patch. Raises PatchError and SandboxError.
    """
    try:
        async with sandbox.on_host(leave_out=(".git",)) as workspace:
            return await diff_workspace(task, workspace)
    except OversizedError as error:
        return make_refused_patch(str(error))


async def diff_workspace(task: Task, workspace: Path) -> Patch:
    """Return the patch of a workspace in which nothing runs any more; raises PatchError.

    A change that is too large gives a patch without diff, with the reason in ``refused``.
    """
    return await asyncio.to_thread(_diff_workspace, task, workspace)


def _diff_workspace(task: Task, workspace: Path) -> Patch:
    try:
        changed = find_tampered(task, workspace)
        tampered = tuple(escape_path(path) for path in changed)
        nested, refused = _survey_work_tree(task, workspace)
        if refused:
            return make_refused_patch(refused, tampered)
        shielded = {
            _highest_replaced(workspace, path.rstrip("/")) for path in (*task.protected, *changed)
        }
        excluded = sorted(shielded.union(nested))
        with tempfile.TemporaryDirectory(dir=workspace.parent) as scratch:
            return _diff(task, workspace, Path(scratch), excluded, tampered)
    except (OSError, subprocess.SubprocessError) as error:
        raise PatchError(f"cannot capture the patch of {task.id}: {error}") from error


def make_refused_patch(reason: str, tampered: tuple[str, ...] = ()) -> Patch:
    """Return the empty patch of a change that is not graded."""
    empty = hashlib.sha256(b"").hexdigest()
    return Patch(diff=b"", sha256=empty, files=(), tampered=tampered, refused=reason)


# --- the work tree, walked without git ---------------------------------------------------------


def _survey_work_tree(task: Task, workspace: Path) -> tuple[list[str], str]:
    """Walk the work tree once; return the paths that git must not see, and why it is refused.

    The paths are nested repositories, which git would read and record as submodules. The reason is
    "" if nothing is too large for git.
    """
    excluded: list[str] = []
    number = 0
    for relative, entry in walk_entries(str(workspace)):
        number += 1
        if number > ENTRY_LIMIT and number > ENTRY_LIMIT + _count_entries(task.repo):
            return [], f"the workspace has more than {ENTRY_LIMIT} new files"
        if entry.name.lower() == ".git":
            parent = relative.rpartition("/")[0]
            if not (task.repo / parent).is_dir():  # git itself skips one in a tracked directory
                excluded.append(parent)
            continue
        info = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(info.st_mode):
            if info.st_size > FILE_LIMIT and not _same_size(task.repo / relative, info.st_size):
                size = info.st_size >> 20
                name = escape_path(relative)
                return [], f"{name} has {size} MB, more than {FILE_LIMIT >> 20} MB"
            if not info.st_mode & stat.S_IRUSR:
                os.chmod(entry.path, stat.S_IMODE(info.st_mode) | stat.S_IRUSR)  # noqa: PTH101
    return excluded, ""


def _count_entries(root: Path) -> int:
    return sum(len(directories) + len(files) for _, directories, files in os.walk(root))


def _same_size(path: Path, size: int) -> bool:
    try:
        return path.lstat().st_size == size
    except OSError:
        return False


# --- git ---------------------------------------------------------------------------------------


def _diff(
    task: Task,
    workspace: Path,
    scratch: Path,
    excluded: list[str],
    tampered: tuple[str, ...],
) -> Patch:
    git = _Git(task, workspace, scratch)
    literal = [f":(exclude,literal){path}" for path in excluded]
    # Exit code 1: git could not add some file (for example a FIFO); that path stays as it was.
    git.run(
        "add", "--all", "--ignore-errors", "--", ".", *EXCLUDED_CACHES, *literal, accepted=(0, 1)
    )
    diff, raw = git.difference(task.base_commit)
    if not _is_utf8(diff):  # of a Latin-1 file: as a binary patch it survives text-only stores
        (scratch / "info/attributes").write_text(f"{ATTRIBUTES.rstrip()} -diff\n")
        diff, raw = git.difference(task.base_commit)
    if len(diff) > DIFF_LIMIT:
        reason = f"the patch has {len(diff)} bytes, more than {DIFF_LIMIT}"
        return make_refused_patch(reason, tampered)
    return Patch(
        diff=diff,
        sha256=hashlib.sha256(diff).hexdigest(),
        files=tuple(sorted(_path_of(line) for line in raw.splitlines())),
        tampered=tampered,
    )


def _highest_replaced(workspace: Path, relative: str) -> str:
    """Return a protected path, or its highest parent that the agent replaced by a non-directory."""
    parts = relative.split("/")
    for end in range(1, len(parts)):
        at = workspace.joinpath(*parts[:end])
        if at.is_symlink() or (at.exists() and not at.is_dir()):
            return "/".join(parts[:end])
    return relative


def _path_of(line: bytes) -> str:
    """Return the path of a line of ``--raw``."""
    return unquote_path(os.fsdecode(line.partition(b"\t")[2]))


def _is_utf8(diff: bytes) -> bool:
    try:
        diff.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Git:
    """Git on the agent's work tree with a repository of ours."""

    def __init__(self, task: Task, workspace: Path, scratch: Path) -> None:
        self._environment = {
            **git_environment(scratch, workspace),
            "GIT_INDEX_FILE": str(scratch / "index"),
        }
        init_git_dir(scratch)
        pristine = task.repo / ".git"
        (scratch / "objects/info/alternates").write_text(f"{pristine / 'objects'}\n")
        # The pristine index: without it, tracked files that .gitignore names would be left out.
        if (pristine / "index").exists():
            shutil.copyfile(pristine / "index", scratch / "index")
        else:
            self.run("read-tree", task.base_commit)

    def difference(self, base_commit: str) -> tuple[bytes, bytes]:
        """Return the difference of index and base: the diff, and the lines of ``--raw``."""
        output = self.run(
            *("diff-index", "--cached", "--raw", "--patch", "--binary", "--full-index"),
            *("--no-color", "--no-renames", "--no-ext-diff", "--no-textconv"),
            *("--ignore-submodules=all", "--src-prefix=a/", "--dst-prefix=b/", base_commit, "--"),
        )
        raw, _, diff = output.partition(b"\n\n") if output else (b"", b"", b"")
        return diff, raw

    def run(self, *arguments: str, accepted: tuple[int, ...] = (0,)) -> bytes:
        """Run git and return its output; raises PatchError."""
        done = run_git(self._environment, *arguments)
        if done.returncode not in accepted:
            raise PatchError(describe_failure(done))
        return done.stdout


# --- in a record: text for people, exact bytes for grading it again -------------------------------


def encode_patch_text(patch: Patch) -> str:
    """Return the diff as text; bytes that are not UTF-8 become U+FFFD."""
    return patch.diff.decode("utf-8", "replace")


def encode_patch_extra(patch: Patch) -> dict[str, str]:
    """Return the fields that the text lacks: the bytes of a diff that is not UTF-8 (of a Latin-1
    file, for example), and the reason why a patch is not graded.
    """
    extra: dict[str, str] = {}
    if encode_patch_text(patch).encode() != patch.diff:
        extra[BYTES] = base64.b64encode(patch.diff).decode()
    if patch.refused:
        extra[REFUSED] = patch.refused
    return extra


def decode_patch(text: str, extra: Mapping[str, Any]) -> Patch:
    """Return the patch of a record, byte for byte; ``files`` is empty, as the diff names them."""
    diff = base64.b64decode(extra[BYTES]) if BYTES in extra else text.encode()
    return Patch(
        diff=diff,
        sha256=hashlib.sha256(diff).hexdigest(),
        files=(),
        tampered=tuple(extra.get("tampered", ())),
        refused=extra.get(REFUSED, ""),
    )
