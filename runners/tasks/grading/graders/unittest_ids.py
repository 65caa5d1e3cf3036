"""Judge by unittest ids, which a program of ours runs one by one."""

from __future__ import annotations

import secrets
from pathlib import Path

from runners.sandboxes.contract import CommandResult, KilledError, Sandbox, compile_program
from runners.tasks.contract import Task, TestResult, UnittestIds, Verdict, VerdictKind
from runners.tasks.grading.graders.verdicts import (
    INSIDE,
    judge_tests,
    killed_after_s,
    list_results,
    make_verdict,
)
from runners.tasks.grading.inside import test_runner

FOLDER = Path(test_runner.__file__).parent
RUNNER = compile_program(FOLDER / "test_runner.py")
RUNNER_INSIDE = f"{INSIDE}/unittest/test_runner{RUNNER.suffix}"
MODULES = ("relay", "agentrl_channel", "agentrl_guard")
"""Modules that the runner imports from its own folder."""
OUTPUT_LIMIT = 1 << 20


def unittest_mounts() -> dict[str, Path]:
    """Return the test runner and its modules."""
    modules = [compile_program(FOLDER / f"{name}.py") for name in MODULES]
    places = zip(MODULES, modules, strict=True)
    inside = {f"{INSIDE}/unittest/{name}{host.suffix}": host for name, host in places}
    return {RUNNER_INSIDE: RUNNER, **inside}


def list_tests(task: Task) -> tuple[str, ...]:
    """Return the tests that are run, in order."""
    assert isinstance(task.grading, UnittestIds)
    return task.grading.runs or (*task.fail_to_pass, *task.pass_to_pass)


async def judge_unittest(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run the tests by ``test_runner.py``; only lines with the nonce count."""
    nonce = secrets.token_hex(16)
    tests = list_tests(task)
    request = [nonce, str(len(tests)), *tests, *task.protected]
    result = await sandbox.run(
        ["python", "-I", "-S", RUNNER_INSIDE],
        deadline_s=deadline_s,
        stdin="\n".join(request).encode(),
        output_limit=OUTPUT_LIMIT,
    )
    return read_verdict(task, nonce, result)


def read_verdict(task: Task, nonce: str, result: CommandResult) -> Verdict:
    """Return the verdict from the test runner's output; a test without a result has failed.

    Without the runner's word that every test ended, nothing is solved. Raises KilledError if the
    runner itself was ended.
    """
    lines = [line.split() for line in result.stdout.decode(errors="replace").splitlines()]
    messages = [words[1:] for words in lines if words and words[0] == nonce]
    found = {int(words[0]): words[1] for words in messages if words[0].isdecimal()}
    if not messages:  # nothing of the patch has run yet
        reason = f"the test runner ended with exit code {result.exit_code} before it began"
        return make_verdict(task, VerdictKind.INFRA, reason, log=result.stderr)
    names = list_tests(task)
    known: dict[str, TestResult] = {
        name: "passed" if found[index] == "pass" else "failed"
        for index, name in enumerate(names)
        if index in found
    }
    tests = list_results(task, lambda name: known.get(name, "missing"))
    faults = [" ".join(words[1:]) for words in messages if words[0] == "fault"]
    if not faults and ["end"] not in messages and not result.timed_out:
        raise KilledError("the test runner did not reach its end")
    return judge_tests(
        task,
        tests,
        log=result.stderr,
        late_s=killed_after_s(result),
        unproven=faults[0] if faults else "",
    )
