"""Judges that run a row's own commands: by their exit code, or by the row's parser.

``eval_cmd`` and ``f2p_script`` are solved by exit code 0. The code under test can end its process
with any exit code, so these are the weakest judges. Only pytest's configuration and the paths that
the command names are protected; more is not possible.

SWE-bench-Pro is solved if the row's parser reports all its fail-to-pass and pass-to-pass tests as
PASSED; a task without tests is never solved. The parser runs after the tests' processes are gone,
outside the work tree.
"""

from __future__ import annotations

import json
from pathlib import Path

from runners.sandboxes.contract import CommandResult, Sandbox
from runners.sandboxes.program import compile_program
from runners.tasks.contract import EvalCommand, F2PScript, ProScripts, Task, Verdict, VerdictKind
from runners.tasks.graders.verdicts import (
    INSIDE,
    OUTPUT_LIMIT,
    PassedCounts,
    judge_counts,
    judge_exit_code,
    killed_after_s,
    make_verdict,
)
from runners.tasks.inside import pro_parser
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
PARSER = compile_program(Path(pro_parser.__file__))
PARSER_INSIDE = f"{INSIDE}/pro_parser{PARSER.suffix}"
PARSE_S = 120.0


async def judge_command(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run a shell command in the work tree (``eval_cmd``)."""
    assert isinstance(task.grading, EvalCommand)
    command = rewrite_paths(task.grading.command, task.grading.workdir, sandbox.workdir)
    return await _run(task, sandbox, ["bash", "-c", command], deadline_s)


async def judge_f2p_script(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run a Python program that the work tree cannot change, with the work tree importable."""
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


def pro_mounts() -> dict[str, Path]:
    """Return pytest and the program that runs the parser; raises PytestMissingError."""
    return {**pytest_mounts(), PARSER_INSIDE: PARSER}


async def judge_pro(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run the selected tests by SWE-bench-Pro's script, then the parser."""
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
