"""Judges by exit code: of a shell command, or of a Python program from outside the repository.

The code under test can end its process with any exit code, so these are the weakest judges. Only
pytest's configuration and the paths that the command names are protected; more is not possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runners.sandboxes.contract import Sandbox
from runners.tasks.contract import EvalCommand, F2PScript, Task, Verdict
from runners.tasks.graders.contract import killed_after_s
from runners.tasks.graders.verdicts import judge_exit_code
from runners.tasks.pytest_mounts import pytest_environment, pytest_mounts, rewrite_paths

LOG_LIMIT = 1 << 20
RUN_STDIN = """\
set -e
folder=$(mktemp -d)
cat > "$folder/f2p.py"
export PYTHONPATH="$PYTHONPATH:$PWD"
exec python "$folder/f2p.py"
"""
"""Runs the program on stdin from a file, because such programs pass ``__file__`` to pytest."""


class CommandJudge:
    """Judges by a shell command in the work tree (``eval_cmd``)."""

    def mounts(self, task: Task) -> Mapping[str, Path]:
        """Return pytest, which most commands run."""
        return pytest_mounts()

    async def judge(self, task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
        """Run the command."""
        assert isinstance(task.grading, EvalCommand)
        command = rewrite_paths(task.grading.command, task.grading.workdir, sandbox.workdir)
        return await _run(task, sandbox, ["bash", "-c", command], deadline_s)


class F2PScriptJudge:
    """Judges by a Python program that the work tree cannot change."""

    def mounts(self, task: Task) -> Mapping[str, Path]:
        """Return pytest, which most programs call."""
        return pytest_mounts()

    async def judge(self, task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
        """Run the program with the work tree importable."""
        assert isinstance(task.grading, F2PScript)
        script = rewrite_paths(task.grading.script, task.grading.workdir, sandbox.workdir)
        return await _run(task, sandbox, ["bash", "-c", RUN_STDIN], deadline_s, script.encode())


async def _run(
    task: Task, sandbox: Sandbox, argv: list[str], deadline_s: float, stdin: bytes = b""
) -> Verdict:
    result = await sandbox.run(
        argv, deadline_s=deadline_s, env=pytest_environment(), stdin=stdin, output_limit=LOG_LIMIT
    )
    log = result.stdout + result.stderr
    return judge_exit_code(task, result.exit_code, log=log, late_s=killed_after_s(result))
