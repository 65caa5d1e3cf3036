"""The grader: a patch in, a verdict out, decided by really running the tests.

Each patch is graded in a fresh sandbox without network, made from the pristine repository: it is
applied from outside, the protected files are put back, then ``test_runner.py`` runs inside.
A verdict is ``infra`` only for what the patch cannot have caused.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from runners.sandboxes.contract import (
    CommandResult,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxSpec,
)
from runners.sandboxes.program import compiled
from runners.sandboxes.tree import copy_tree, remove_tree
from runners.tasks.contract import Patch, Task, Verdict, VerdictKind
from runners.tasks.patch import git_environment, make_repository, run_git

RUNNER = compiled(Path(__file__).with_name("test_runner.py"))
RUNNER_INSIDE = f"/opt/agentrl/test_runner{RUNNER.suffix}"
LOG_BYTES = 4000
OUTPUT_LIMIT = 1 << 20


class TestGrader:
    """Grades in sandboxes of one backend; an identical patch of a task is graded once."""

    __test__ = False  # pytest: the name is not a test's

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._graded: dict[tuple[str, str, str], Verdict] = {}
        self._grading: dict[tuple[str, str, str], asyncio.Event] = {}

    async def grade(self, task: Task, patch: Patch, *, name: str, deadline_s: float) -> Verdict:
        """Grade a patch; ``name`` names the sandbox. Infra verdicts are not remembered."""
        if patch.refused:
            return _verdict(task, VerdictKind.UNSOLVED, patch.refused)
        key = (task.id, task.base_commit, patch.sha256)
        while key in self._grading:
            await self._grading[key].wait()
        if key in self._graded:
            return self._graded[key]
        self._grading[key] = asyncio.Event()
        try:
            verdict = await self._grade(task, patch, name, deadline_s)
            if verdict.kind is not VerdictKind.INFRA:
                self._graded[key] = verdict
            return verdict
        finally:
            self._grading.pop(key).set()

    async def _grade(self, task: Task, patch: Patch, name: str, deadline_s: float) -> Verdict:
        started = time.monotonic()
        try:
            spec = SandboxSpec(name, task.repo, "none", mounts={RUNNER_INSIDE: RUNNER})
            sandbox = await self._backend.create(spec)
            try:
                verdict = await self._judge(task, patch, sandbox, deadline_s)
            finally:
                await sandbox.close()
        except (SandboxError, OSError, subprocess.SubprocessError) as error:
            verdict = _verdict(task, VerdictKind.INFRA, f"{type(error).__name__}: {error}")
        return replace(verdict, duration_s=time.monotonic() - started)

    async def _judge(
        self, task: Task, patch: Patch, sandbox: Sandbox, deadline_s: float
    ) -> Verdict:
        refusal = await asyncio.to_thread(prepare, task, patch, sandbox.workspace)
        if refusal:
            return _verdict(task, VerdictKind.UNSOLVED, "patch does not apply", log=refusal)
        nonce = secrets.token_hex(16)
        tests = [*task.fail_to_pass, *task.pass_to_pass]
        request = [nonce, str(len(tests)), *tests, *task.protected]
        result = await sandbox.run(
            ["python", "-I", "-S", RUNNER_INSIDE],
            deadline_s=deadline_s,
            stdin="\n".join(request).encode(),
            output_limit=OUTPUT_LIMIT,
        )
        return read_verdict(task, nonce, result)


def prepare(task: Task, patch: Patch, workspace: Path) -> str:
    """Apply a patch to a fresh workspace and put protected files back; return git's refusal if any.

    Raises OSError and SubprocessError. Git neither follows symbolic links nor writes into ``.git``.
    """
    if patch.diff:
        with tempfile.TemporaryDirectory(dir=workspace.parent) as scratch:
            make_repository(Path(scratch))
            environment = git_environment(Path(scratch), workspace)
            done = run_git(environment, "apply", "--whitespace=nowarn", "-", stdin=patch.diff)
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode < 0 or "No space left" in said:
            raise OSError(f"git apply ended with {done.returncode}: {said[-400:]}")
        if done.returncode:
            return said or f"git apply ended with {done.returncode}"
    for protected in task.protected:
        restore(task.repo, workspace, protected.rstrip("/"))
    return ""


def restore(pristine: Path, workspace: Path, relative: str) -> None:
    """Make a protected path what it was, whatever the patch put there or on the way there."""
    at = workspace
    for part in relative.split("/")[:-1]:
        at = at / part
        if at.is_symlink() or (at.exists() and not at.is_dir()):
            at.unlink()
        at.mkdir(exist_ok=True)
    original, target = pristine / relative, workspace / relative
    remove_tree(target)
    if original.is_dir() and not original.is_symlink():
        copy_tree(original, target)
    elif original.is_symlink() or original.exists():
        shutil.copy2(original, target, follow_symlinks=False)


@dataclass(frozen=True, slots=True)
class _Tally:
    fail_to_pass: int
    pass_to_pass: int


def read_verdict(task: Task, nonce: str, result: CommandResult) -> Verdict:
    """Turn what the test runner printed into a verdict; a test without a result has failed."""
    lines = [line.split() for line in result.stdout.decode(errors="replace").splitlines()]
    said = [words[1:] for words in lines if words and words[0] == nonce]
    passed = {int(words[0]) for words in said if words[1:] == ["pass"]}
    log = result.stderr[-LOG_BYTES:].decode(errors="replace")
    if not said and not result.timed_out:
        reason = f"the test runner ended with exit code {result.exit_code} before it began"
        return _verdict(task, VerdictKind.INFRA, reason, log=log)
    first = len(task.fail_to_pass)
    tally = _Tally(sum(index < first for index in passed), sum(index >= first for index in passed))
    solved = tally.fail_to_pass == first and tally.pass_to_pass == len(task.pass_to_pass)
    if result.timed_out:
        solved, reason = False, f"the tests did not end within {result.duration_s:.0f} s"
    else:
        reason = _reason(task, tally)
    kind = VerdictKind.SOLVED if solved else VerdictKind.UNSOLVED
    return _verdict(task, kind, reason, tally=tally, log=log, timed_out=result.timed_out)


def _reason(task: Task, tally: _Tally) -> str:
    failing = [
        f"{total - passed} of {total} {name} tests fail"
        for name, passed, total in (
            ("fail-to-pass", tally.fail_to_pass, len(task.fail_to_pass)),
            ("pass-to-pass", tally.pass_to_pass, len(task.pass_to_pass)),
        )
        if passed < total
    ]
    return ", ".join(failing) or "all tests pass"


def _verdict(
    task: Task,
    kind: VerdictKind,
    reason: str,
    *,
    tally: _Tally = _Tally(0, 0),
    log: str = "",
    timed_out: bool = False,
) -> Verdict:
    return Verdict(
        kind=kind,
        fail_to_pass_passed=tally.fail_to_pass,
        fail_to_pass_total=len(task.fail_to_pass),
        pass_to_pass_passed=tally.pass_to_pass,
        pass_to_pass_total=len(task.pass_to_pass),
        reason=reason,
        log=log,
        duration_s=0.0,
        timed_out=timed_out,
    )
