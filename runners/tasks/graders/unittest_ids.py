"""Judge by unittest ids, which a program of ours runs one by one."""

from __future__ import annotations

import secrets
from pathlib import Path

from runners.sandboxes.contract import CommandResult, Sandbox
from runners.sandboxes.program import compile_program
from runners.tasks.contract import Task, Verdict, VerdictKind
from runners.tasks.graders.verdicts import (
    PassedCounts,
    judge_counts,
    killed_after_s,
    make_verdict,
)
from runners.tasks.inside import test_runner

RUNNER = compile_program(Path(test_runner.__file__))
RUNNER_INSIDE = f"/opt/agentrl/test_runner{RUNNER.suffix}"
OUTPUT_LIMIT = 1 << 20


def unittest_mounts() -> dict[str, Path]:
    """Return the test runner."""
    return {RUNNER_INSIDE: RUNNER}


async def judge_unittest(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run the tests by ``test_runner.py``; only lines with the nonce count."""
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


def read_verdict(task: Task, nonce: str, result: CommandResult) -> Verdict:
    """Return the verdict from the test runner's output; a test without a result has failed."""
    lines = [line.split() for line in result.stdout.decode(errors="replace").splitlines()]
    messages = [words[1:] for words in lines if words and words[0] == nonce]
    passed = {int(words[0]) for words in messages if words[1:] == ["pass"]}
    if not messages and not result.timed_out:
        reason = f"the test runner ended with exit code {result.exit_code} before it began"
        return make_verdict(task, VerdictKind.INFRA, reason, log=result.stderr)
    first = len(task.fail_to_pass)
    fixed = sum(index < first for index in passed)
    tally = PassedCounts(fixed, len(passed) - fixed)
    return judge_counts(task, tally, log=result.stderr, late_s=killed_after_s(result))
