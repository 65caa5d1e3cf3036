"""Judge of SWE-bench-Pro: a script runs the selected test files, a parser reads the output.

A task is solved if the parser reports all its fail-to-pass and pass-to-pass tests as PASSED; a task
without tests is never solved. The parser runs after the tests' processes are gone, outside the work
tree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from runners.sandboxes.contract import CommandResult, Sandbox
from runners.sandboxes.program import compile_program
from runners.tasks.contract import ProScripts, Task, Verdict, VerdictKind
from runners.tasks.graders.contract import INSIDE, OUTPUT_LIMIT, killed_after_s
from runners.tasks.graders.verdicts import PassedCounts, judge_counts, make_verdict
from runners.tasks.inside import pro_parser
from runners.tasks.pytest_mounts import pytest_environment, pytest_mounts, rewrite_paths

PARSER = compile_program(Path(pro_parser.__file__))
PARSER_INSIDE = f"{INSIDE}/pro_parser{PARSER.suffix}"
PARSE_S = 120.0


class ProJudge:
    """Judges by the row's own test script and parser."""

    def mounts(self, task: Task) -> Mapping[str, Path]:
        """Return pytest and the program that runs the parser."""
        return {**pytest_mounts(), PARSER_INSIDE: PARSER}

    async def judge(self, task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
        """Run the tests, then the parser."""
        grading = task.grading
        assert isinstance(grading, ProScripts)
        script = rewrite_paths(grading.run_script, grading.workdir, sandbox.workdir)
        tests = await sandbox.run(
            ["bash", "-c", script, "run_script.sh", ",".join(grading.selected)],
            deadline_s=deadline_s,
            env=pytest_environment(),
            output_limit=OUTPUT_LIMIT,
        )
        parsed = await sandbox.run(
            ["python", "-I", "-S", PARSER_INSIDE],
            deadline_s=PARSE_S,
            stdin=_encode_request(grading.parser, tests),
            output_limit=OUTPUT_LIMIT,
        )
        log = tests.stdout + tests.stderr
        passed = _passed_tests(parsed)
        if passed is None:
            output = parsed.stderr[-400:].decode(errors="replace").strip()
            reason = f"the parser failed: {output}"
            return make_verdict(task, VerdictKind.UNSOLVED, reason, log=log)
        tally = PassedCounts(
            sum(name in passed for name in task.fail_to_pass),
            sum(name in passed for name in task.pass_to_pass),
        )
        if not task.fail_to_pass and not task.pass_to_pass:
            return make_verdict(task, VerdictKind.UNSOLVED, "the task names no test", log=log)
        return judge_counts(task, tally, log=log, late_s=killed_after_s(tests))


def _encode_request(parser: str, tests: CommandResult) -> bytes:
    texts = {"stdout": tests.stdout, "stderr": tests.stderr}
    printed = {name: text.decode(errors="replace") for name, text in texts.items()}
    return json.dumps({"parser": parser, **printed}).encode()


def _passed_tests(parsed: CommandResult) -> set[str] | None:
    """Return the tests that the parser reports as passed; None if it gave no result."""
    if parsed.exit_code:
        return None
    try:
        tests = json.loads(parsed.stdout)["tests"]
        return {test["name"] for test in tests if test["status"] == "PASSED"}
    except (ValueError, KeyError, TypeError):
        return None
