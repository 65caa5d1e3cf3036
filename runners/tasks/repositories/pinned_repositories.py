"""Pristine repositories: one commit and its history, nothing else.

Only what the base commit reaches is fetched, into a new repository without remotes, tags, other
branches or reflogs. So later commits, the fix among them, are not hidden but absent. The work tree
has the blobs' exact bytes. A repository is complete or absent; as commit ids name content, each
commit is made once per user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from conf.url_secrets import hide_secrets
from runners.system.processes import atomic_directory
from runners.tasks.git import (
    ATTRIBUTES,
    commit_identity,
    describe_failure,
    git_environment,
    run_git,
)
from runners.tasks.section_keys import name_key

COMMIT_TIME_S = 1_700_000_000
"""Fixed, so that the same setup gives the same commit."""
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
TRUST_CONFIG = "[safe]\n\tdirectory = *\n"
"""Lets git read a source of another user; reading runs none of its hooks."""
TRANSPORTS = "file:git:http:https:ssh"
BRANCH = "main"


class SourceError(AgentrlError):
    """A repository cannot be fetched from its source."""

    exit_code = ExitCode.DATA_REFUSED


def find_source(row_path: str, repo: str, beside: Path, repositories: Path | None) -> str:
    """Return the source of a repository; raises SourceError, and ValueError for a path as a name.

    It is the row's ``repo_path`` (a URL, or a path relative to the row's file), else the clone of
    ``owner/name`` in the directory ``repositories``.
    """
    if "://" in row_path:
        return row_path
    if row_path:
        path = beside / row_path
        if not path.exists():
            raise SourceError(f"repo_path={row_path}: there is no {path}")
        return str(path.resolve())
    if repositories is None:
        raise SourceError(
            f"the source of {repo or 'its repository'} is unknown: give the row a repo_path, or "
            f"set {name_key('repositories')} to a directory of clones"
        )
    if repo.startswith(("/", "~")) or ".." in repo.split("/"):
        raise ValueError(f"repo={repo} is no owner/name: it leads out of {repositories}")
    names = [repo, repo.replace("/", "__"), repo.rpartition("/")[2]]
    for path in (
        repositories / f"{name}{end}" for name in names for end in ("", ".git", ".bundle")
    ):
        if repo and path.exists():
            return str(path.resolve())
    raise SourceError(
        f"{name_key('repositories')}={repositories} has no {repo}: git clone --mirror it to "
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
        raise SourceError(hide_secrets(f"cannot read the HEAD of {source}: {error}")) from error
    commit = done.stdout[:40].decode(errors="replace")
    if done.returncode or len(commit) < 40:
        raise SourceError(f"{hide_secrets(source)} is not a git repository with a HEAD")
    return commit


def list_missing_commits(source: str, commits: set[str]) -> set[str]:
    """Return the commits that a repository on this disk does not have; an empty set if git cannot
    tell.
    """
    # Nothing is fetched where a clone lacks some objects by intent.
    environment = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    command = ["git", "-c", "safe.directory=*", "-C", source, "cat-file", "--batch-check"]
    try:
        done = subprocess.run(
            command,
            env=environment,
            input="\n".join(sorted(commits)).encode(),
            capture_output=True,
            timeout=FETCH_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return set()
    if done.returncode:
        return set()
    answers = (line.split() for line in done.stdout.decode().splitlines())
    return {answer[0] for answer in answers if answer[1] == "missing"}


def make_pinned_repository(
    source: str, commit: str, target: Path, *, also: tuple[str, ...] = ()
) -> None:
    """Make ``target`` a checked-out repository at ``commit`` with its history, unless it exists.

    ``also``: further commits to fetch, if the source has them. Blocks. Raises SourceError.
    """
    if target.exists():
        return
    try:
        with atomic_directory(target) as repo:
            _fetch_and_check_out(source, commit, repo, also)
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(hide_secrets(f"cannot make {target} from {source}: {error}")) from error


def make_git_dir(repo: Path) -> None:
    """Make the ``.git`` of an empty repository."""
    folder = repo / ".git"
    for name in ("refs/heads", "objects/info", "objects/pack", "info"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text(f"ref: refs/heads/{BRANCH}\n")
    (folder / "config").write_text(CONFIG)


def check_out(git: ByteExactGit, commit: str) -> None:
    """Make a commit the branch, the index and the work tree; raises SourceError."""
    git("update-ref", f"refs/heads/{BRANCH}", commit)
    git("read-tree", commit)
    git("checkout-index", "--all", "--force")
    git("update-index", "-q", "--refresh", accepted=(0, 1))


def tidy(folder: Path) -> None:
    """Remove from a ``.git`` what git wrote besides objects and the branch."""
    for name in ("FETCH_HEAD", "ORIG_HEAD", "shallow", "description"):
        (folder / name).unlink(missing_ok=True)
    for name in ("branches", "hooks", "logs"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _fetch_and_check_out(source: str, commit: str, repo: Path, also: tuple[str, ...]) -> None:
    make_git_dir(repo)
    with ByteExactGit(repo) as git:
        with tempfile.TemporaryDirectory(dir=repo.parent) as scratch:
            if source.endswith(".bundle"):  # git fetches only the heads of a bundle, not any commit
                git("clone", "--quiet", "--mirror", source, f"{scratch}/clone", outside=True)
                source = f"{scratch}/clone"
            fetch_commit(git, source, commit)
            for extra in also:
                fetch_commit(git, source, extra, needed=False)
        check_out(git, commit)
    tidy(repo / ".git")


def fetch_commit(git: ByteExactGit, source: str, commit: str, *, needed: bool = True) -> None:
    """Fetch a commit and what it reaches; raises SourceError if it is needed and not there."""
    output = git(
        *("-c", "fetch.writeCommitGraph=false", "fetch", "--quiet", "--no-tags", "--no-auto-gc"),
        *("--no-write-fetch-head", "--no-recurse-submodules", "--", source, commit),
        accepted=(0,) if needed else (0, 1, 128),
    )
    if needed and git("cat-file", "-t", commit, accepted=(0, 128)).strip() != "commit":
        raise SourceError(
            hide_secrets(f"{source} has no commit {commit}: fetch it there ({output.strip()})")
        )


class ByteExactGit:
    """Git on a repository of ours; within the ``with`` block it converts no byte."""

    def __init__(self, repo: Path) -> None:
        self._attributes = repo / ".git/info/attributes"
        self._environment = {
            **git_environment(repo / ".git", repo),
            "GIT_ALLOW_PROTOCOL": TRANSPORTS,
            "GIT_LFS_SKIP_SMUDGE": "1",
            **commit_identity(COMMIT_TIME_S),
        }

    def __enter__(self) -> ByteExactGit:
        self._attributes.parent.mkdir(exist_ok=True)
        self._attributes.write_text(ATTRIBUTES)
        handle, self._trust_config = tempfile.mkstemp()
        os.write(handle, TRUST_CONFIG.encode())
        os.close(handle)
        self._environment["GIT_CONFIG_GLOBAL"] = self._trust_config
        return self

    def __exit__(self, *_: object) -> None:
        self._attributes.unlink(missing_ok=True)
        Path(self._trust_config).unlink(missing_ok=True)

    def __call__(
        self, *arguments: str, accepted: tuple[int, ...] = (0,), outside: bool = False
    ) -> str:
        """Run git, or run it ``outside`` the repository; raises SourceError with its output."""
        environment = dict(self._environment)
        if outside:
            del environment["GIT_DIR"]
        done = run_git(environment, *arguments, deadline_s=FETCH_S)
        if done.returncode not in accepted:
            raise SourceError(hide_secrets(describe_failure(done)))
        return done.stdout.decode(errors="replace")
