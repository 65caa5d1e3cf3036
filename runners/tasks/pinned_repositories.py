"""The pristine repository of a task: one commit and what came before it, and nothing else.

Only what the base commit reaches is fetched, into a new repository without remotes, tags, other
branches or reflogs: the future (the fix among it) is not hidden but absent. The work tree has the
blobs' bytes as they are. A repository is complete or absent; commit ids name content, so the same
commit is made once per user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from runners.processes.atomic_write import atomic_directory
from runners.tasks.patch import ATTRIBUTES, git_environment, run_git

FETCH_S = 900.0
"""Large projects come with a gigabyte of history."""
CONFIG = """\
[core]
\trepositoryFormatVersion = 0
\tfileMode = true
\tbare = false
\tlogAllRefUpdates = false
[gc]
\tauto = 0
"""
TRUSTING = "[safe]\n\tdirectory = *\n"
"""The source may belong to another user; git runs none of its hooks to read it."""
TRANSPORTS = "file:git:http:https:ssh"
BRANCH = "main"


class SourceError(AgentrlError):
    """A repository cannot be had from where it should come from."""

    exit_code = ExitCode.DATA_REFUSED


def find_source(row_says: str, repo: str, beside: Path, repositories: Path | None) -> str:
    """Return where to fetch a repository from: the row's ``repo_path`` (relative to its file) or
    URL, else what ``repositories`` has for ``owner/name``; raises SourceError.
    """
    if "://" in row_says:
        return row_says
    if row_says:
        path = beside / row_says
        if not path.exists():
            raise SourceError(f"repo_path={row_says}: there is no {path}")
        return str(path.resolve())
    if repositories is None:
        raise SourceError(
            f"nothing says where {repo or 'its repository'} is: give the row a repo_path, or set "
            "task.repositories to a directory of clones"
        )
    names = [repo, repo.replace("/", "__"), repo.rpartition("/")[2]]
    for path in (
        repositories / f"{name}{end}" for name in names for end in ("", ".git", ".bundle")
    ):
        if repo and path.exists():
            return str(path.resolve())
    raise SourceError(
        f"task.repositories={repositories} has no {repo}: git clone --mirror it to "
        f"{repositories / names[1]}.git"
    )


def read_head(source: str) -> str:
    """Return the commit that a source has at HEAD; raises SourceError."""
    environment = {**os.environ, "GIT_ALLOW_PROTOCOL": TRANSPORTS, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "-c", "safe.directory=*", "ls-remote", "--", source, "HEAD"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=FETCH_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(f"cannot ask {source} for its HEAD: {error}") from error
    commit = done.stdout[:40].decode(errors="replace")
    if done.returncode or len(commit) < 40:
        raise SourceError(f"{source} is no git repository with a HEAD")
    return commit


def make_pinned_repository(
    source: str, commit: str, target: Path, *, also: tuple[str, ...] = ()
) -> None:
    """Make ``target`` a repository at ``commit`` with the history of it (and of the commits
    ``also``, as far as the source has them), checked out; does nothing if it is there.

    Blocks. Raises SourceError.
    """
    if target.exists():
        return
    try:
        with atomic_directory(target) as repo:
            _fetch_and_check_out(source, commit, repo, also)
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(f"cannot make {target} from {source}: {error}") from error


def commit_all(repo: Path, message: str) -> str:
    """Commit the work tree of a repository of ours, with a fixed identity; return the commit.

    What .gitignore names stays out. Raises OSError and SubprocessError.
    """
    with _ByteExactGit(repo) as git:
        git("add", "--all")
        tree, parent = git("write-tree").strip(), git("rev-parse", "HEAD").strip()
        commit = git("commit-tree", tree, "-p", parent, "-m", message).strip()
        git("update-ref", f"refs/heads/{BRANCH}", commit)
    return commit


def _fetch_and_check_out(source: str, commit: str, repo: Path, also: tuple[str, ...]) -> None:
    folder = repo / ".git"
    for name in ("refs/heads", "objects/info", "objects/pack", "info"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text(f"ref: refs/heads/{BRANCH}\n")
    (folder / "config").write_text(CONFIG)
    with _ByteExactGit(repo) as git:
        with tempfile.TemporaryDirectory(dir=repo.parent) as scratch:
            if source.endswith(".bundle"):  # a bundle answers only to its heads
                git("clone", "--quiet", "--mirror", source, f"{scratch}/clone", apart=True)
                source = f"{scratch}/clone"
            _fetch(git, source, commit)
            for extra in also:
                _fetch(git, source, extra, needed=False)
        git("update-ref", f"refs/heads/{BRANCH}", commit)
        git("read-tree", commit)
        git("checkout-index", "--all", "--force")
        git("update-index", "-q", "--refresh", fine=(0, 1))
    for name in ("FETCH_HEAD", "ORIG_HEAD", "shallow", "description"):
        (folder / name).unlink(missing_ok=True)
    for name in ("branches", "hooks", "logs"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _fetch(git: _ByteExactGit, source: str, commit: str, *, needed: bool = True) -> None:
    said = git(
        *("-c", "fetch.writeCommitGraph=false", "fetch", "--quiet", "--no-tags", "--no-auto-gc"),
        *("--no-write-fetch-head", "--no-recurse-submodules", "--", source, commit),
        fine=(0,) if needed else (0, 1, 128),
    )
    if needed and git("cat-file", "-t", commit, fine=(0, 128)).strip() != "commit":
        raise SourceError(f"{source} has no commit {commit}: fetch it there ({said.strip()})")


class _ByteExactGit:
    """Git on a repository of ours, with bytes as they are for as long as it is entered."""

    def __init__(self, repo: Path) -> None:
        self._attributes = repo / ".git/info/attributes"
        self._environment = {
            **git_environment(repo / ".git", repo),
            "GIT_ALLOW_PROTOCOL": TRANSPORTS,
            "GIT_LFS_SKIP_SMUDGE": "1",
            **{f"GIT_{who}_NAME": "agentrl" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "agentrl@localhost" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_DATE": "1700000000 +0000" for who in ("AUTHOR", "COMMITTER")},
        }

    def __enter__(self) -> _ByteExactGit:
        self._attributes.parent.mkdir(exist_ok=True)
        self._attributes.write_text(ATTRIBUTES)
        handle, self._trusting = tempfile.mkstemp()
        os.write(handle, TRUSTING.encode())
        os.close(handle)
        self._environment["GIT_CONFIG_GLOBAL"] = self._trusting
        return self

    def __exit__(self, *_: object) -> None:
        self._attributes.unlink(missing_ok=True)
        Path(self._trusting).unlink(missing_ok=True)

    def __call__(self, *arguments: str, fine: tuple[int, ...] = (0,), apart: bool = False) -> str:
        """Run git, ``apart`` from the repository; raises SourceError with what it said."""
        environment = dict(self._environment)
        if apart:
            del environment["GIT_DIR"]
        done = run_git(environment, *arguments, deadline_s=FETCH_S)
        if done.returncode not in fine:
            said = done.stderr[-400:].decode(errors="replace").strip()
            raise SourceError(f"git {' '.join(arguments)[:200]} failed: {said}")
        return done.stdout.decode(errors="replace")
