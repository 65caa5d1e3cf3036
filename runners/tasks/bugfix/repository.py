"""Write a project as a git repository: two git processes, few files, a reproducible commit id.

History is one commit whose author, committer and date are fixed. Objects are in one pack and there
are no hooks, so a copy of the repository copies six files of ``.git``.
"""

from __future__ import annotations

from pathlib import Path

from conf.errors import AgentrlError
from runners.tasks.git import describe_failure, git_environment, run_git

_IDENTITY = "agentrl <agentrl@localhost> 1700000000 +0000"
_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = false
[user]
\tname = agentrl
\temail = agentrl@localhost
[fastimport]
\tunpackLimit = 1
"""


class RepositoryError(AgentrlError):
    """A task's repository could not be written."""


def write_repository(directory: Path, files: dict[str, str]) -> str:
    """Make ``directory`` a git repository with one commit of ``files``, checked out; return the
    commit's id.

    Raises RepositoryError when git is missing or fails.
    """
    for path, text in files.items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    head = directory / ".git"
    for folder in ("objects", "refs"):
        (head / folder).mkdir(parents=True)
    (head / "HEAD").write_text("ref: refs/heads/main\n")
    (head / "config").write_text(_CONFIG)
    _git(directory, "fast-import", "--quiet", stdin=_commit_stream(files))
    _git(directory, "read-tree", "HEAD")
    return (head / "refs/heads/main").read_text().strip()


def _commit_stream(files: dict[str, str]) -> bytes:
    """Return one commit in the language of git fast-import."""
    message = b"Start\n"
    parts = [
        b"commit refs/heads/main\ncommitter %s\ndata %d\n%s\n"
        % (_IDENTITY.encode(), len(message), message)
    ]
    for path, text in sorted(files.items()):
        content = text.encode()
        parts.append(b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(content), content))
    parts.append(b"done\n")
    return b"".join(parts)


def _git(directory: Path, *arguments: str, stdin: bytes = b"") -> None:
    try:
        done = run_git(git_environment(directory / ".git", directory), *arguments, stdin=stdin)
    except FileNotFoundError as error:
        raise RepositoryError("git is not installed: tasks are git repositories") from error
    if done.returncode:
        raise RepositoryError(f"{directory}: {describe_failure(done)}")
