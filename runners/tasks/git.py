"""Git without foreign configuration: neither the user's, nor the system's, nor the work tree's."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

GIT_S = 60.0
CONFIG = """\
[core]
repositoryFormatVersion = 0
bare = false
fileMode = true
symlinks = true
autocrlf = false
safecrlf = false
quotePath = true
fsmonitor = false
untrackedCache = false
looseCompression = 0
fsync = none
protectHFS = false
protectNTFS = false
packedGitWindowSize = 32m
packedGitLimit = 256m
"""
"""``protect…``: such names are ordinary here, and an agent's ``git~1`` must not make git fail.
``packedGit…``: of a large pack, git keeps little in memory at once.
"""
ATTRIBUTES = "* -text !eol !filter !ident !working-tree-encoding !diff !whitespace\n"
"""No conversion of any byte: info/attributes overrides the work tree's .gitattributes."""


def init_git_dir(git_dir: Path) -> None:
    """Make the minimum that git accepts as a repository: no history, no conversions."""
    for name in ("refs", "info", "objects/info"):
        (git_dir / name).mkdir(parents=True)
    (git_dir / "HEAD").write_text("ref: refs/heads/none\n")
    (git_dir / "config").write_text(CONFIG)
    (git_dir / "info/attributes").write_text(ATTRIBUTES)


def git_environment(git_dir: Path, work_tree: Path) -> dict[str, str]:
    """Return an environment in which git reads only the configuration of ``git_dir``."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "GIT_DIR": str(git_dir),
        "GIT_WORK_TREE": str(work_tree),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
    }


def commit_identity(time_s: int) -> dict[str, str]:
    """Return the variables of a fixed author and date, so that commit ids are reproducible.

    ``time_s``: seconds since 1970, in UTC.
    """
    identity = {"NAME": "agentrl", "EMAIL": "agentrl@localhost", "DATE": f"{time_s} +0000"}
    return {
        f"GIT_{who}_{field}": value
        for who in ("AUTHOR", "COMMITTER")
        for field, value in identity.items()
    }


def run_git(
    environment: dict[str, str],
    *arguments: str,
    stdin: bytes = b"",
    deadline_s: float = GIT_S,
    output_limit: int | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run git in the work tree of ``environment``; raises OSError and SubprocessError.

    With ``output_limit``, git is killed as soon as it has printed more bytes.
    """
    if output_limit is not None:
        return _run_limited(environment, arguments, output_limit)
    return subprocess.run(
        ["git", *arguments],
        input=stdin,
        capture_output=True,
        env=environment,
        cwd=environment["GIT_WORK_TREE"],
        timeout=deadline_s,
        check=False,
    )


def _run_limited(
    environment: dict[str, str], arguments: tuple[str, ...], output_limit: int
) -> subprocess.CompletedProcess[bytes]:
    """Run git without input; what it prints is read as it comes, and no further than the limit."""
    command = ["git", *arguments]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=environment["GIT_WORK_TREE"],
        ) as process,
    ):
        assert process.stdout is not None
        output = process.stdout.read(output_limit + 1)
        if len(output) > output_limit:
            process.kill()
        code = process.wait()
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, output, errors.read(65536))


def describe_failure(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return one line on a git command that failed: its arguments, exit code and last output."""
    output = done.stderr[-400:].decode(errors="replace").strip()
    command = " ".join(done.args)[:200]
    return f"`{command}` failed with exit code {done.returncode}: {output}"
