"""The diff of a workspace against the pinned base commit.

The work tree is compared, so commits, the index, untracked files, deletions, modes and binaries all
count. The agent's ``.git`` is never read: git runs with a repository of ours (configuration,
attributes, index, new objects) that borrows the pristine repository's objects. So an agent's hooks,
filters, fsmonitor, attributes and nested repositories have no effect. No symbolic link is followed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

from conf.errors import AgentrlError
from runners.records.outcome import OutcomeCode
from runners.sandboxes.contract import describe_os_error
from runners.tasks.contract import (
    CHANGED_LIMIT,
    DEFAULT_LIMITS,
    FILE_LIMIT,
    PATH_LIMIT,
    CaptureLimits,
    Patch,
    RefusedError,
    Task,
    make_refused_patch,
    patch_error,
    unreadable_error,
    workspace_error,
)
from runners.tasks.git import (
    ATTRIBUTES,
    describe_failure,
    git_environment,
    init_git_dir,
    run_git,
)
from runners.tasks.patches.diffs import unquote_path
from runners.tasks.patches.protection import escape_path, find_touched, walk_entries

RAW_LINE = 4 * PATH_LIMIT + 120
"""Longest line of ``--raw``: modes, two object names, a quoted path."""
EXCLUDED_CACHES = (":(exclude,glob)**/__pycache__/**", ":(exclude,glob)**/*.pyc")
"""Pathspecs of files that Python writes by itself."""
HOST_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.ESTALE}
)
"""Errors of the machine; any other is the answer to what is in the workspace."""


class PatchError(AgentrlError):
    """The change could not be captured, and not through the agent's fault."""


def diff_workspace(task: Task, workspace: Path, limits: CaptureLimits = DEFAULT_LIMITS) -> Patch:
    """Return the patch of a workspace, refused if it cannot be read; raises PatchError.

    It takes as long as the workspace makes it: ``capture_patch`` runs it in a process of its own.
    """
    try:
        return _capture(task, workspace, limits)
    except RefusedError as refusal:
        return make_refused_patch(str(refusal), code=refusal.code)
    except OSError as error:
        if error.errno in HOST_ERRORS or not os.path.lexists(workspace):
            text = f"cannot capture the patch of {task.id}"
            raise PatchError(describe_os_error(text, workspace.parent, error)) from error
        reason = f"the workspace cannot be read: {error.strerror}"
    except subprocess.SubprocessError as error:
        raise PatchError(f"cannot capture the patch of {task.id}: {error}") from error
    except (RecursionError, MemoryError) as error:
        reason = f"the workspace cannot be read: {type(error).__name__}"
    return make_refused_patch(reason, code=OutcomeCode.POLICY_UNREADABLE_WORKSPACE)


def _capture(task: Task, workspace: Path, limits: CaptureLimits) -> Patch:
    """Return the patch; raises RefusedError, PatchError and OSError."""
    nested = _survey_work_tree(task, workspace, limits)  # first: it bounds all that follows
    changed = find_touched(task, workspace)
    touched = tuple(escape_path(path) for path in changed)
    shielded = {
        _highest_replaced(workspace, path.rstrip("/")) for path in (*task.protected, *changed)
    }
    excluded = sorted(shielded.union(nested))
    with tempfile.TemporaryDirectory(dir=workspace.parent) as scratch:
        try:
            diff, files = _diff(task, workspace, Path(scratch), excluded, limits)
        except RefusedError as refusal:
            return make_refused_patch(str(refusal), touched, code=refusal.code)
    digest = hashlib.sha256(diff).hexdigest()
    return Patch(diff=diff, sha256=digest, files=files, protected_touched=touched)


def _survey_work_tree(task: Task, workspace: Path, limits: CaptureLimits) -> list[str]:
    """Walk the work tree once; return the paths that git must not see.

    They are nested repositories, which git would record as submodules, and special files (a FIFO)
    that have a name of git's own files.

    Raises RefusedError if the tree is too large to be walked again, and OSError.
    """
    excluded: list[str] = []
    number = size = 0
    own = None
    for relative, entry in walk_entries(str(workspace)):
        number += 1
        if number > limits.workspace_files:
            own = _count_entries(task.repo) if own is None else own
            if number > limits.workspace_files + own:
                reason = f"the workspace has more than {limits.workspace_files} new files"
                raise workspace_error(reason)
        if entry.name.lower() == ".git":
            parent = relative.rpartition("/")[0]
            if not (task.repo / parent).is_dir():  # git itself skips one in a tracked directory
                excluded.append(parent)
            continue
        info = entry.stat(follow_symlinks=False)
        if entry.name.startswith(".git") and _unfit_for_git(relative, entry, info):
            excluded.append(relative)
            continue
        size += 512 * info.st_blocks
        if size > limits.workspace_bytes:
            raise workspace_error(f"the workspace has more than {limits.workspace_bytes >> 20} MB")
        if stat.S_ISREG(info.st_mode) and not info.st_mode & stat.S_IRUSR:
            os.chmod(entry.path, stat.S_IMODE(info.st_mode) | stat.S_IRUSR)  # noqa: PTH101
    return excluded


def _unfit_for_git(relative: str, entry: os.DirEntry[str], info: os.stat_result) -> bool:
    """Remove what git would open by its name (``.gitignore``) and wait for; return whether it was.

    Git opens a FIFO before it looks at what it is, and no pathspec keeps it from that. Raises
    RefusedError for a file of patterns that is too large to be read.
    """
    if stat.S_ISREG(info.st_mode) and info.st_size > FILE_LIMIT:
        raise _file_error(relative, info.st_size)
    if stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode) or stat.S_ISLNK(info.st_mode):
        return False
    os.unlink(entry.path)  # noqa: PTH108 (a path of the walk)
    return True


def _count_entries(root: Path) -> int:
    return sum(len(directories) + len(files) for _, directories, files in os.walk(root))


def _diff(
    task: Task,
    workspace: Path,
    scratch: Path,
    excluded: list[str],
    limits: CaptureLimits,
) -> tuple[bytes, tuple[str, ...]]:
    """Return the diff and its files; raises RefusedError, PatchError and OSError."""
    git = _Git(task, workspace, scratch, limits)
    literal = [f":(exclude,literal){path}" for path in excluded]
    where = ("--", ".", *EXCLUDED_CACHES, *literal)
    _check_changed(workspace, git.list_changed(where), limits)
    # Exit code 1: git could not add some file (for example a FIFO); that path stays as it was.
    git.run("add", "--all", "--ignore-errors", *where, accepted=(0, 1))
    diff, raw = git.difference(task.base_commit)
    if not _is_utf8(diff):  # of a Latin-1 file: as a binary patch it survives text-only stores
        (scratch / "info/attributes").write_text(f"{ATTRIBUTES.rstrip()} -diff\n")
        diff, raw = git.difference(task.base_commit)
    return diff, tuple(sorted(_path_of(line) for line in raw.splitlines()))


def _check_changed(workspace: Path, changed: list[bytes], limits: CaptureLimits) -> None:
    """Raise RefusedError if git would have to read too much of the changed files."""
    if len(changed) > limits.patch_files:
        raise patch_error(f"more than {limits.patch_files} files are changed")
    total = 0
    for name in changed:
        try:
            info = os.lstat(os.path.join(os.fsencode(workspace), name))  # noqa: PTH118
        except OSError:
            continue  # deleted, or its directory is none any more
        size = info.st_size if stat.S_ISREG(info.st_mode) else 0
        total += size
        if size > FILE_LIMIT:
            raise _file_error(os.fsdecode(name), size)
        if total > CHANGED_LIMIT:
            raise patch_error(f"the changed files have more than {CHANGED_LIMIT >> 20} MB")


def _file_error(relative: str, size: int) -> RefusedError:
    shown = escape_path(relative)
    return patch_error(f"{shown} has {size >> 20} MB, more than {FILE_LIMIT >> 20} MB")


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
    return escape_path(unquote_path(os.fsdecode(line.partition(b"\t")[2])))


def _is_utf8(diff: bytes) -> bool:
    try:
        diff.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Git:
    """Git on the agent's work tree with a repository of ours."""

    def __init__(self, task: Task, workspace: Path, scratch: Path, limits: CaptureLimits) -> None:
        self._limits, self._base_commit = limits, task.base_commit
        self._environment = {
            **git_environment(scratch, workspace),
            "GIT_INDEX_FILE": str(scratch / "index"),
        }
        init_git_dir(scratch)
        pristine = task.repo / ".git"
        if (pristine / "info/exclude").exists():  # what an image has besides the repository
            shutil.copyfile(pristine / "info/exclude", scratch / "info/exclude")
        (scratch / "objects/info/alternates").write_text(f"{pristine / 'objects'}\n")
        # The pristine index: without it, tracked files that .gitignore names would be left out.
        if (pristine / "index").exists():
            shutil.copyfile(pristine / "index", scratch / "index")
        else:
            self.run("read-tree", task.base_commit)

    def list_changed(self, where: tuple[str, ...]) -> list[bytes]:
        """Return the paths that ``git add`` would read: new ones that are not ignored, changed
        ones, deleted ones. A path may occur twice.
        """
        self.run("update-index", "-q", "--refresh", accepted=(0, 1))
        arguments = ("ls-files", "-z", "--others", "--modified", "--exclude-standard", *where)
        limit = 2 * self._limits.patch_files * PATH_LIMIT
        return self.run(*arguments, limit=limit).split(b"\0")[:-1]

    def difference(self, base_commit: str) -> tuple[bytes, bytes]:
        """Return the difference of index and base: the diff, and the lines of ``--raw``."""
        limits = self._limits
        output = self.run(
            # Else a binary patch is not compressed either.
            *("-c", "core.looseCompression=6"),
            *("diff-index", "--cached", "--raw", "--patch", "--binary", "--full-index"),
            *("--no-color", "--no-renames", "--no-ext-diff", "--no-textconv"),
            *("--ignore-submodules=all", "--src-prefix=a/", "--dst-prefix=b/", base_commit, "--"),
            limit=limits.patch_bytes + limits.patch_files * RAW_LINE,
        )
        raw, _, diff = output.partition(b"\n\n") if output else (b"", b"", b"")
        if len(diff) > limits.patch_bytes:
            raise patch_error(_too_long(limits))
        return diff, raw

    def run(self, *arguments: str, accepted: tuple[int, ...] = (0,), limit: int = 0) -> bytes:
        """Run git and return its output.

        Raises RefusedError if there are more than ``limit`` bytes of it, or if git used more CPU
        time than it may; PatchError if git fails.
        """
        done = run_git(self._environment, *arguments, output_limit=limit or None)
        if done.returncode == -signal.SIGXCPU:
            raise unreadable_error(f"git {arguments[0]} took more CPU time than it may")
        if limit and len(done.stdout) > limit:
            raise patch_error(_too_long(self._limits))
        if done.returncode not in accepted:
            self._raise_failure(done)
        return done.stdout

    def _raise_failure(self, done: subprocess.CompletedProcess[bytes]) -> None:
        """Raise the error of a git command that failed: the agent's, unless git or the pristine
        repository does not work without the agent's files either.
        """
        failure = describe_failure(done)
        killed = done.returncode == -signal.SIGKILL  # by a machine without memory
        tree = run_git(self._environment, "ls-tree", "-r", self._base_commit)
        if killed or "No space left" in failure or tree.returncode:
            raise PatchError(failure)
        raise unreadable_error(failure)


def _too_long(limits: CaptureLimits) -> str:
    return f"the patch has more than {limits.patch_bytes} bytes"
