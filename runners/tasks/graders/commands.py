"""Judges that run a row's own commands: by their exit code, or by the row's parser.

``eval_cmd`` and ``f2p_script`` are solved by exit code 0, if it is proven that the Python processes
which the command started came to their end (``inside/end_proof.py``): the code under test can end
its process with any exit code. Of other programs the exit code alone is known, and only pytest's
configuration and the paths that the row names are protected: these are the weakest judges.

SWE-bench-Pro is solved if the row's parser reports all its fail-to-pass and pass-to-pass tests as
PASSED; a task without tests is never solved. The parser runs after the tests' processes are gone,
outside the work tree. A ``LogParser`` is judged likewise, by a script and a parser of the task's.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from runners.sandboxes.contract import CommandResult, Sandbox
from runners.sandboxes.program import compile_program
from runners.tasks.contract import (
    EvalCommand,
    F2PScript,
    LogParser,
    ProScripts,
    Task,
    TestResult,
    Verdict,
    VerdictKind,
)
from runners.tasks.graders.eval_script import (
    PASSING,
    PROGRAM_INSIDE,
    ScriptRun,
    run_script,
    script_mounts,
)
from runners.tasks.graders.verdicts import (
    INSIDE,
    OUTPUT_LIMIT,
    judge_exit_code,
    judge_tests,
    list_results,
    make_verdict,
)
from runners.tasks.inside import pro_parser

RUN_PROGRAM = """\
set -e
folder=$(mktemp -d)
printf %s {program} > "$folder/f2p.py"
export PYTHONPATH="$PYTHONPATH:$PWD"
export AGENTRL_PROGRAM="$folder/f2p.py"
exec python {runner} "$folder/f2p.py"
"""
"""Runs the program from a file, because such programs pass ``__file__`` to pytest."""
PARSER = compile_program(Path(pro_parser.__file__))
PARSER_INSIDE = f"{INSIDE}/pro_parser{PARSER.suffix}"
PARSE_S = 120.0


async def judge_command(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run a shell command in the work tree (``eval_cmd``)."""
    assert isinstance(task.grading, EvalCommand)
    grading = task.grading
    run = await run_script(grading.workdir, grading.command, sandbox, deadline_s, image=task.image)
    return judge_end(task, run)


async def judge_f2p_script(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run a Python program that the work tree cannot change, with the work tree importable."""
    assert isinstance(task.grading, F2PScript)
    grading = task.grading
    script = RUN_PROGRAM.format(program=shlex.quote(grading.script), runner=PROGRAM_INSIDE)
    run = await run_script(grading.workdir, script, sandbox, deadline_s, image=task.image)
    return judge_end(task, run, is_program=True)


def judge_end(task: Task, run: ScriptRun, *, is_program: bool = False) -> Verdict:
    """Return solved for exit code 0 of a command whose processes came to their end."""
    if not run.started and run.late_s is None:
        return make_verdict(task, VerdictKind.INFRA, "the command was not started", log=run.log)
    code = -9 if run.exit_code is None else run.exit_code
    verdict = judge_exit_code(task, code, log=run.log, late_s=run.late_s)
    doubts = list(run.unproven.values())
    if is_program and not run.reached:
        doubts.append("the program did not come to its end")
    if verdict.kind is VerdictKind.SOLVED and doubts:
        return make_verdict(task, VerdictKind.UNSOLVED, doubts[0], log=run.log)
    return verdict


def pro_mounts() -> dict[str, Path]:
    """Return ``script_mounts`` and the program that runs the parser; raises PytestMissingError."""
    return {**script_mounts(), PARSER_INSIDE: PARSER}


async def judge_pro(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run the selected tests by SWE-bench-Pro's script, then the parser."""
    grading = task.grading
    assert isinstance(grading, ProScripts)
    script = f"set -- {shlex.quote(','.join(grading.selected))}\n{grading.run_script}"
    return await judge_parsed(task, sandbox, deadline_s, script, grading.parser)


async def judge_log_parser(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run the tests by the task's script, then its parser on what the script printed."""
    grading = task.grading
    assert isinstance(grading, LogParser)
    return await judge_parsed(
        task,
        sandbox,
        deadline_s,
        grading.script,
        grading.parser,
        missing_passes=grading.missing_passes,
    )


async def judge_parsed(
    task: Task,
    sandbox: Sandbox,
    deadline_s: float,
    script: str,
    parser: str,
    *,
    missing_passes: bool = False,
) -> Verdict:
    """Run a script, then a parser on its output; what our pytest plugin saw fail has failed."""
    grading = task.grading
    assert isinstance(grading, ProScripts | LogParser)
    tests = await run_script(
        grading.workdir, script, sandbox, deadline_s, image=task.image, apart=True
    )
    parsed = await sandbox.run(
        ["python", "-I", "-S", PARSER_INSIDE],
        deadline_s=PARSE_S,
        stdin=_encode_request(parser, tests),
        output_limit=OUTPUT_LIMIT,
    )
    log = tests.stdout + tests.log
    found = read_results(parsed)
    if found is None:
        output = parsed.stderr[-400:].decode(errors="replace").strip()
        reason = f"the parser failed: {output}"
        return make_verdict(task, VerdictKind.UNSOLVED, reason, log=log)
    return judge_results(task, tests, found, log=log, missing_passes=missing_passes)


def judge_results(
    task: Task,
    tests: ScriptRun,
    found: Mapping[str, TestResult],
    *,
    log: bytes,
    missing_passes: bool = False,
) -> Verdict:
    """Return the verdict by what a parser reports and, as far as it has seen the tests, pytest."""
    seen = {name: outcome in PASSING for name, outcome in tests.outcomes.items()}
    results = list_results(
        task,
        lambda name: (
            "failed" if name in found and not seen.get(name, True) else found.get(name, "missing")
        ),
    )
    unproven = next(iter(tests.unproven.values()), "")
    return judge_tests(
        task,
        results,
        log=log,
        late_s=tests.late_s,
        unproven=unproven,
        missing_passes=missing_passes,
    )


def _encode_request(parser: str, tests: ScriptRun) -> bytes:
    texts = {"stdout": tests.stdout, "stderr": tests.log}
    printed = {name: text.decode(errors="replace") for name, text in texts.items()}
    return json.dumps({"parser": parser, **printed}).encode()


def read_results(parsed: CommandResult) -> dict[str, TestResult] | None:
    """Return the tests that the parser reports; None if it gave no result.

    A test that is reported twice, once as failed, has failed.
    """
    if parsed.exit_code:
        return None
    try:
        found: dict[str, TestResult] = {}
        for test in json.loads(parsed.stdout)["tests"]:
            passed = test["status"] == "PASSED" and found.get(test["name"]) != "failed"
            found[test["name"]] = "passed" if passed else "failed"
        return found
    except (ValueError, KeyError, TypeError):
        return None
