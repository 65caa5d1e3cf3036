"""Grade the end state of a sandbox by a Harbor task's own verifier.

Invariant: "no verdict" is never the policy's choice. A verifier that leaves no reward, in whatever
way (no file, a crash, its deadline, a sandbox that is lost), is compared with the same verifier in
an untouched environment: if that one leaves a reward, the agent's changes are the cause, and the
task is unsolved; if it leaves none either, the task or the machine is, and there is no verdict.
An end state is graded once, so a verifier that had no processor leaves no verdict.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from conf.errors import AgentrlError, error_text
from runners.sandboxes.contract import (
    CheckCommand,
    Sandbox,
    SandboxBackend,
    SandboxError,
    StarvedError,
)
from runners.sandboxes.wrappers import FairSandbox, open_sandbox
from runners.tasks.contract import Task, Verdict, VerdictKind
from runners.tasks.grading.graders.task_grader import EnsureRepository
from runners.tasks.grading.graders.verdicts import make_verdict
from runners.tasks.harbor.artifacts import fetch_artifacts
from runners.tasks.harbor.directory import (
    SOLUTION,
    SOLVE_SCRIPT,
    TEST_SCRIPT,
    TESTS,
    TaskDirectory,
)
from runners.tasks.harbor.environment import (
    allowed_hosts,
    describe_environment,
    find_directory,
    layout_root,
    list_trees,
    merge_root,
    overlay_root,
    split_root,
)
from runners.tasks.harbor.inspection import OUTPUT, find_planted_link
from runners.tasks.harbor.rewards import JSON_FILE, KEY, TEXT_FILE, RewardError, read_rewards
from runners.tasks.harbor.task_config import resolve_variables

TESTS_INSIDE, SOLUTION_INSIDE = "/tests", "/solution"
SOLVED_FROM = 1.0
LOG_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class VerifierRun:
    """One run of a verifier."""

    rewards: dict[str, float] | None
    """None: it left none."""
    problem: str
    """Reason why there are none, else ""."""
    log: bytes = b""
    timed_out: bool = False


class EndStateGrader:
    """Grades Harbor tasks in sandboxes of one backend."""

    def __init__(self, backend: SandboxBackend, ensure_repository: EnsureRepository) -> None:
        self._backend = backend
        self._ensure_repository = ensure_repository

    async def grade(self, task: Task, sandbox: Sandbox, *, name: str, deadline_s: float) -> Verdict:
        """Grade what an agent left; see ``Grader.grade_end_state``."""
        started, sandbox = time.monotonic(), FairSandbox(sandbox)
        try:
            found = find_directory(task)
            if link := await find_planted_link(sandbox):
                verdict = make_verdict(task, VerdictKind.UNSOLVED, link)
                return replace(verdict, tampered=link, duration_s=time.monotonic() - started)
            run = await self._verify(found, task, sandbox, name, deadline_s)
        except StarvedError as error:
            return make_verdict(task, VerdictKind.INFRA, str(error))
        except (AgentrlError, OSError, ValueError) as error:
            run = VerifierRun(None, f"{type(error).__name__}: {error_text(error)}")
        if run.rewards is None:
            verdict = await self._blame(task, run, name, deadline_s)
        else:
            verdict = _make_reward_verdict(task, run.rewards, run.log)
        return replace(verdict, duration_s=time.monotonic() - started)

    async def grade_reference(
        self, task: Task, *, solve: bool, name: str, deadline_s: float
    ) -> Verdict:
        """Grade the solution or the untouched environment; see ``Grader.grade_reference``."""
        started = time.monotonic()
        try:
            run = await self._run_reference(task, name, deadline_s, solve=solve)
        except (AgentrlError, OSError, ValueError) as error:
            run = VerifierRun(None, f"{type(error).__name__}: {error_text(error)}")
        if run.rewards is None:
            verdict = make_verdict(task, VerdictKind.INFRA, run.problem, log=run.log)
        else:
            verdict = _make_reward_verdict(task, run.rewards, run.log)
        return replace(verdict, duration_s=time.monotonic() - started)

    async def _blame(self, task: Task, run: VerifierRun, name: str, deadline_s: float) -> Verdict:
        """Return the verdict for a verifier that left no reward."""
        # Each time anew: that the machine could run it an hour ago says nothing of now.
        control = await self.grade_reference(
            task, solve=False, name=f"{name}-control", deadline_s=deadline_s
        )
        if control.kind is VerdictKind.INFRA:
            reason = f"{run.problem}; nor has it a verdict untouched: {control.reason}"
            return make_verdict(task, VerdictKind.INFRA, reason, log=run.log)
        reason = f"{run.problem}; untouched, the environment gets a verdict"
        return make_verdict(
            task, VerdictKind.UNSOLVED, reason, log=run.log, timed_out=run.timed_out
        )

    async def _run_reference(
        self, task: Task, name: str, deadline_s: float, *, solve: bool
    ) -> VerifierRun:
        task = await self._ensure_repository(task)
        found = find_directory(task)
        if solve and not found.has_solution:
            return VerifierRun(None, f"it has no {SOLUTION}/{SOLVE_SCRIPT}")
        spec = describe_environment(task)
        mounts = {SOLUTION_INSIDE: found.path / SOLUTION} if solve else {}
        spec = replace(spec, name=name, mounts={**mounts, **spec.mounts})
        async with open_sandbox(self._backend, spec) as opened:
            sandbox = FairSandbox(opened)
            await wait_healthy(task, sandbox)
            if solve:
                await _solve(found, sandbox, deadline_s)
            return await self._verify(found, task, sandbox, name, deadline_s)

    async def _verify(
        self, found: TaskDirectory, task: Task, sandbox: Sandbox, name: str, deadline_s: float
    ) -> VerifierRun:
        """Run the verifier, in the same sandbox or with the artifacts in one of its own.

        Raises AgentrlError, OSError and ValueError.
        """
        limit_s = min(deadline_s, found.config.verifier.timeout_sec)
        if not found.config.verifier.separate:
            return await _check(found, sandbox, limit_s)
        for each in found.config.verifier.collect:
            command = ["sh", "-c", each.command]
            await sandbox.run_check(
                CheckCommand(command, {}, OUTPUT, (), each.timeout_sec, user=each.user)
            )
        async with _open_verifier(found, task, sandbox, name, self._backend) as apart:
            return await _check(found, FairSandbox(apart), limit_s)


@asynccontextmanager
async def _open_verifier(
    found: TaskDirectory, task: Task, sandbox: Sandbox, name: str, backend: SandboxBackend
) -> AsyncIterator[Sandbox]:
    """Yield a fresh sandbox with the artifacts of another one."""
    own = found.config.verifier.environment
    with tempfile.TemporaryDirectory(prefix="agentrl-artifacts-") as scratch:
        carried = await fetch_artifacts(sandbox, found.config.artifacts, Path(scratch))
        spec = replace(describe_environment(task), name=f"{name}-verifier")
        workdir = (own.workdir if own else None) or found.workdir
        if task.image is None:
            root = Path(scratch) / "merged"
            await asyncio.to_thread(merge_root, layout_root(found), carried, root)
            (root / workdir.strip("/")).mkdir(parents=True, exist_ok=True)
            source, trees = split_root(root, workdir)
            spec = replace(spec, source=source, trees=trees, workdir=workdir)
        else:
            image = own.docker_image if own and own.docker_image else task.image
            root = carried
            if image == task.image:
                root = Path(scratch) / "merged"
                await asyncio.to_thread(merge_root, overlay_root(found), carried, root)
            spec = replace(spec, image=image, trees=list_trees(root), workdir=workdir)
        if own is not None:
            env = resolve_variables("verifier.environment", own.env, os.environ)
            spec = replace(spec, env={**spec.env, **env})
        hosts = allowed_hosts(found.config.verifier_network)
        async with open_sandbox(backend, replace(spec, egress_hosts=hosts)) as apart:
            yield apart


async def _check(found: TaskDirectory, sandbox: Sandbox, deadline_s: float) -> VerifierRun:
    """Run test.sh; its exit code says nothing, its reward file does."""
    tests = found.path / TESTS
    inside = f"{TESTS_INSIDE}/{TEST_SCRIPT}"
    own = (tests / TEST_SCRIPT).is_file()
    done = await sandbox.run_check(
        CheckCommand(
            argv=script_argv(tests / TEST_SCRIPT, inside) if own else [inside],
            files={TESTS_INSIDE: tests} if own else {},
            output=OUTPUT,
            reads=(JSON_FILE, TEXT_FILE),
            deadline_s=deadline_s,
            env=resolve_variables("verifier", found.config.verifier.env, os.environ),
            user=found.config.verifier.user,
            output_limit=LOG_LIMIT,
        )
    )
    log = done.result.stdout + done.result.stderr
    if done.result.timed_out:
        problem = f"the verifier did not end within {deadline_s:.0f} s"
        return VerifierRun(None, problem, log, timed_out=True)
    try:
        return VerifierRun(read_rewards(done.files), "", log)
    except RewardError as error:
        code = done.result.exit_code
        return VerifierRun(None, f"{error} ({TEST_SCRIPT} ended with exit code {code})", log)


def script_argv(script: Path, inside: str) -> list[str]:
    """Return the command that runs a script as the kernel would, executable or not.

    A script without ``#!`` is run by sh, as a shell does.
    """
    with script.open("rb") as file:
        first = file.readline(4096)
    if not first.startswith(b"#!"):
        return ["sh", inside]
    words = first[2:].decode("utf-8", "surrogateescape").strip().split(maxsplit=1)
    return [*words, inside] if words else ["sh", inside]


async def _solve(found: TaskDirectory, sandbox: Sandbox, deadline_s: float) -> None:
    """Run the reference solution with an agent's rights, as long as an agent may take.

    Raises SandboxError if it is late.
    """
    script = found.path / SOLUTION / SOLVE_SCRIPT
    env = resolve_variables("solution", found.config.solution.env, os.environ)
    done = await sandbox.run(
        script_argv(script, f"{SOLUTION_INSIDE}/{SOLVE_SCRIPT}"),
        deadline_s=found.config.agent.timeout_sec or deadline_s,
        env={"DEBIAN_FRONTEND": "noninteractive", **env},
    )
    if done.timed_out:
        raise SandboxError(f"its {SOLVE_SCRIPT} did not end within {done.duration_s:.0f} s")


async def wait_healthy(task: Task, sandbox: Sandbox) -> None:
    """Return when the environment's health check succeeds; raises SandboxError if it does not."""
    check = find_directory(task).config.environment.healthcheck
    if check is None:
        return
    began, failures = time.monotonic(), 0
    while True:
        done = await sandbox.run(["sh", "-c", check.command], deadline_s=check.timeout_sec)
        if done.exit_code == 0:
            return
        starting = time.monotonic() - began < check.start_period_sec
        failures += not starting
        if failures >= check.retries:
            raise SandboxError(f"the health check {shlex.quote(check.command)} fails")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


def agent_limit_s(task: Task, deadline_s: float) -> float:
    """Return the agent's time: ours, or the task's own if that is shorter."""
    own = find_directory(task).config.agent.timeout_sec
    return deadline_s if own is None else min(own, deadline_s)


def _make_reward_verdict(task: Task, rewards: dict[str, float], log: bytes) -> Verdict:
    reward = rewards[KEY]
    kind = VerdictKind.SOLVED if reward >= SOLVED_FROM else VerdictKind.UNSOLVED
    others = "".join(f", {name} {value:g}" for name, value in rewards.items() if name != KEY)
    verdict = make_verdict(task, kind, f"the verifier's reward is {reward:g}{others}", log=log)
    return replace(verdict, rewards=tuple(rewards.items()))
