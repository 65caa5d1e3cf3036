"""Grading of a patch by running the tests in a fresh sandbox without network.

The sandbox is made from the pristine repository: the patch is applied from outside, protected files
are restored, then the judge of the task's kind of grading runs the tests inside.

Invariants: a verdict is ``infra`` only for a failure that the patch cannot have caused, and
unsolved only for one that it can have caused. Where a run was ended before it told (its sandbox
killed or full, a plug-in that raised), it is repeated; failing twice, the reference patch in its
place tells whose fault it is. A patch can make a run look as if it had no processor, so such a run
is its fault where the reference patch ends well within the time between two of them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from conf.errors import AgentrlError
from conf.schema import Config
from conf.sections.task import (
    BugfixTaskConfig,
    HeldOutEvalTaskConfig,
    MixtureConfig,
    SwebenchTaskConfig,
    TaskFileConfig,
    pays_parts,
)
from runners.sandboxes.contract import (
    KilledError,
    OversizedError,
    Sandbox,
    SandboxBackend,
    SandboxSpec,
    StarvedError,
)
from runners.sandboxes.tree import copy_tree, remove_tree
from runners.sandboxes.wrappers import FairSandbox, open_sandbox
from runners.system.plugins import PluginFailedError
from runners.tasks.contract import Patch, RefusedError, Task, Verdict, VerdictKind
from runners.tasks.git import git_environment, init_git_dir, run_git
from runners.tasks.grading.canaries.verification import Verification
from runners.tasks.grading.graders import JUDGES
from runners.tasks.grading.graders.end_state import EndStateGrader
from runners.tasks.grading.graders.task_grader import EnsureRepository, TaskGrader
from runners.tasks.grading.graders.verdicts import DOES_NOT_APPLY, make_verdict
from runners.tasks.grading.rollout_result import Grader, RolloutResult
from runners.tasks.patches.patch import decode_patch
from runners.tasks.patches.protection import find_metadata, find_touched
from runners.tasks.pytest_mounts import filter_mounts
from runners.tasks.repositories.task_repositories import DELETED


def make_grader(
    backend: SandboxBackend,
    config: Config,
    ensure_repository: EnsureRepository,
    run_dir: Path,
    *,
    remembers: bool = True,
) -> Grader:
    """Return the grader of a configuration's tasks; a benchmark's logs are kept in ``run_dir``.

    ``remembers``: an identical patch of a task is graded once.
    """

    def make(tasks: BugfixTaskConfig | TaskFileConfig | MixtureConfig) -> TaskGrader:
        return _make_task_grader(
            backend, config, tasks, ensure_repository, run_dir, remembers=remembers
        )

    if isinstance(config.eval_task, HeldOutEvalTaskConfig):
        return make(config.task)
    return SplitGrader(make(config.task), make(config.eval_task))


def _make_task_grader(
    backend: SandboxBackend,
    config: Config,
    task: BugfixTaskConfig | TaskFileConfig | MixtureConfig,
    ensure_repository: EnsureRepository,
    run_dir: Path,
    *,
    remembers: bool,
) -> TaskGrader:
    run_tests = SandboxGrader(backend)
    flaky_reruns = 0 if isinstance(task, BugfixTaskConfig) else task.flaky_reruns
    return TaskGrader(
        run_tests,
        ensure_repository,
        flaky_reruns=flaky_reruns,
        # A flaky test may fail its negation by chance: several gradings have to agree.
        verification=Verification(
            run_tests,
            task.canaries,
            runs=1 + flaky_reruns,
            partial_credit=pays_parts(config.reward),
        ),
        log_dir=run_dir if isinstance(task, SwebenchTaskConfig) else None,
        end_states=EndStateGrader(backend, ensure_repository),
        remembers=remembers,
    )


@dataclass(frozen=True, slots=True)
class SplitGrader:
    """A ``Grader`` of evaluated tasks by other settings than trained ones."""

    train: Grader
    held_out: Grader

    async def grade(
        self, task: Task, result: RolloutResult, *, name: str, deadline_s: float
    ) -> Verdict:
        """Grade the patch of a rollout; see ``Grader``."""
        return await self._of(task).grade(task, result, name=name, deadline_s=deadline_s)

    async def grade_end_state(
        self, task: Task, sandbox: Sandbox, *, name: str, deadline_s: float
    ) -> Verdict:
        """Grade what an agent left in its sandbox; see ``Grader``."""
        grader = self._of(task)
        return await grader.grade_end_state(task, sandbox, name=name, deadline_s=deadline_s)

    async def grade_reference(
        self, task: Task, *, solve: bool, name: str, deadline_s: float
    ) -> Verdict:
        """Grade the reference solution or the untouched environment; see ``Grader``."""
        grader = self._of(task)
        return await grader.grade_reference(task, solve=solve, name=name, deadline_s=deadline_s)

    def _of(self, task: Task) -> Grader:
        return self.held_out if task.split == "held_out" else self.train


_DOUBTFUL = (PluginFailedError, OversizedError, KilledError, StarvedError)
"""A run ended, and what the patch does in it may be the cause, or not."""
_FAILURES = (AgentrlError, OSError, subprocess.SubprocessError)


class SandboxGrader:
    """Grades once, in a sandbox of one backend."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend

    async def grade(
        self,
        task: Task,
        patch: Patch,
        *,
        name: str,
        deadline_s: float,
        files: Mapping[str, bytes] | None = None,
    ) -> Verdict:
        """Grade a patch; ``files`` replace test files by path.

        ``name`` is in no sandbox: what runs there can read its sandbox's name, and must not learn
        which grading it is in.
        """
        started = time.monotonic()
        if patch.refused:
            return make_verdict(task, VerdictKind.UNSOLVED, patch.refused)
        try:
            verdict = await self._run_judge(task, patch, name, deadline_s, files or {})
        except _DOUBTFUL as error:  # the tests run the agent's code, so it may be the cause
            verdict = await self._find_cause(task, patch, error, name, deadline_s, files or {})
        except _FAILURES as error:
            verdict = make_verdict(task, VerdictKind.INFRA, _describe(error))
        return replace(verdict, duration_s=time.monotonic() - started)

    async def _find_cause(
        self,
        task: Task,
        patch: Patch,
        error: Exception,
        name: str,
        deadline_s: float,
        files: Mapping[str, bytes],
    ) -> Verdict:
        """Return the verdict of a second run. If that fails too, return infra where the reference
        patch fails as well, else unsolved: a policy must not escape its grade by what its patch
        does to the grading.

        After a run that had no processor, the reference patch is run before the second run and in
        half the time, because load comes and goes. Without one there is nothing to compare with:
        untouched code may fail at once on any machine.
        """
        obstacle = None
        if isinstance(error, StarvedError) and task.gold_patch:
            obstacle = await self._try_reference(task, patch, name, deadline_s / 2, files)
        elif isinstance(error, StarvedError):
            obstacle = "there is no reference patch to compare it with"
        try:
            return await self._run_judge(task, patch, f"{name}-again", deadline_s, files)
        except _DOUBTFUL as again:
            reason = str(again)
        except _FAILURES as again:
            return make_verdict(task, VerdictKind.INFRA, _describe(again))
        if obstacle is None:
            obstacle = await self._try_reference(task, patch, name, deadline_s, files)
        if obstacle:
            return make_verdict(task, VerdictKind.INFRA, f"{reason}; {obstacle}")
        return make_verdict(
            task, VerdictKind.UNSOLVED, f"with this patch, and not without it, {reason}"
        )

    async def _try_reference(
        self, task: Task, patch: Patch, name: str, deadline_s: float, files: Mapping[str, bytes]
    ) -> str:
        """Return why a run of the reference patch clears the patch; "" if it does not."""
        if patch.diff == task.gold_patch.encode():
            return "it is the reference patch"
        reference = decode_patch(task.gold_patch, {})
        try:
            control = await self._run_judge(task, reference, f"{name}-control", deadline_s, files)
        except (*_DOUBTFUL, *_FAILURES) as error:
            return f"and so without this patch: {_describe(error)}"
        told = control.kind is not VerdictKind.INFRA and not control.timed_out
        return "" if told else f"without this patch: {control.reason}"

    async def _run_judge(
        self,
        task: Task,
        patch: Patch,
        name: str,
        deadline_s: float,
        files: Mapping[str, bytes],
    ) -> Verdict:
        judge = JUDGES[task.grading.kind]

        def change(workspace: Path) -> None:
            refusal = apply_patch(task, patch, workspace)
            if refusal:
                raise _DoesNotApplyError(refusal)
            if task.hidden_tests is not None:
                place_hidden_tests(task.hidden_tests, workspace)
            for path, content in sorted(files.items()):
                replace_file(workspace / path, content)

        spec = SandboxSpec(
            f"grading-{secrets.token_hex(8)}",
            task.repo,
            "none",
            mounts=filter_mounts(judge.mounts(), task.image),
            change=change,
            image=task.image,
            workdir=task.workdir,
            purpose=name,
        )
        try:
            async with open_sandbox(self._backend, spec) as sandbox:
                return await judge.judge(task, FairSandbox(sandbox), deadline_s)
        except _DoesNotApplyError as error:
            reason = f"{DOES_NOT_APPLY}: {summarize_refusal(str(error))}"
            return make_verdict(task, VerdictKind.UNSOLVED, reason, log=str(error).encode())


_REASONS, _REASON_LENGTH = 3, 300
"""Refusals of git that a verdict's reason repeats, and characters of each; its log has them all."""


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class _DoesNotApplyError(Exception):
    """Git refuses the patch; the text is git's reason."""


def summarize_refusal(output: str) -> str:
    """Return git's own reasons in one line: ``patch failed: add.py:7; no.py: No such file or …``.

    Of a file git says twice that a hunk does not fit, with the hunk's line and without.
    """
    lines = [line.removeprefix("error: ").strip() for line in output.splitlines()]
    reasons = [line for line in lines if line and not line.endswith(": patch does not apply")]
    reasons = reasons or lines
    more = len(reasons) - _REASONS
    shown = "; ".join(reason[:_REASON_LENGTH] for reason in reasons[:_REASONS])
    return f"{shown}; and {more} more" if more > 0 else shown


def apply_patch(task: Task, patch: Patch, workspace: Path) -> str:
    """Apply a patch to a fresh workspace and restore protected files; return git's refusal, or "".

    Raises OSError and SubprocessError. Git neither follows symbolic links nor writes into ``.git``.
    """
    if patch.diff:
        with tempfile.TemporaryDirectory(dir=workspace.parent) as scratch:
            init_git_dir(Path(scratch))
            environment = git_environment(Path(scratch), workspace)
            done = run_git(environment, "apply", "--whitespace=nowarn", "-", stdin=patch.diff)
        output = done.stderr.decode(errors="replace").strip()
        # Killed, or a full disk: not the patch's fault, so not a refusal.
        if done.returncode < 0 or "No space left" in output:
            raise OSError(f"git apply ended with {done.returncode}: {output[-400:]}")
        if done.returncode:
            return output or f"git apply ended with {done.returncode}"
    try:
        touched = find_touched(task, workspace, with_new_tests=True)
    except RefusedError as refusal:
        return str(refusal)
    for path in (*touched, *find_metadata(task, patch)):
        restore_path(task.repo, workspace, path)
    return ""


def place_hidden_tests(hidden: Path, workspace: Path) -> None:
    """Put the hidden tests in place of whatever the patch left there; follows no link."""
    for path in hidden.with_name(DELETED).read_text().splitlines():
        restore_path(hidden, workspace, path)
    for folder, _, names in os.walk(hidden):
        for name in names:
            restore_path(hidden, workspace, os.path.relpath(os.path.join(folder, name), hidden))  # noqa: PTH118


def replace_file(target: Path, content: bytes) -> None:
    """Write a file in place of whatever is there, with the mode of a file that is there; follows no
    link.
    """
    mode = 0o644
    with contextlib.suppress(OSError):
        found = target.lstat().st_mode
        mode = stat.S_IMODE(found) if stat.S_ISREG(found) else mode
    remove_tree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(mode)


def restore_path(pristine: Path, workspace: Path, relative: str) -> None:
    """Make a protected path what it is in ``pristine``, whatever the patch put there.

    A file or link that the patch put in the place of a parent directory is removed first.
    """
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
