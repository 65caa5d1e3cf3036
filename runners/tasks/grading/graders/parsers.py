"""The judge of scripts: run the script, then read its results by the parser that it names.

Printed output decides nothing where our pytest plugin saw the tests. The rules for pytest are
SWE-bench's: an expected failure has passed; a skipped test has not (pytest's summary does not name
it); an id that is cut off inside its parameters stands for all tests that begin with it, if they
agree.

``eval_cmd`` and ``f2p_script`` are solved by exit code 0, if it is proven that the Python processes
which the script started came to their end (``inside/end_proof.py``): the code under test can end
its process with any exit code. Of other programs the exit code alone is known, and only pytest's
configuration and the paths that the row names are protected: these are the weakest judges.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from runners.sandboxes.contract import CommandResult, KilledError, Sandbox, compile_program
from runners.tasks.contract import ScriptGrading, Task, TestResult, Verdict, VerdictKind
from runners.tasks.grading.graders.eval_script import (
    PROGRAM_INSIDE,
    ScriptRun,
    run_script,
    script_mounts,
    worse_outcome,
)
from runners.tasks.grading.graders.packages import build_eval_script, read_multi_swe, read_swebench
from runners.tasks.grading.graders.verdicts import (
    INSIDE,
    OUTPUT_LIMIT,
    judge_exit_code,
    judge_tests,
    list_results,
    make_verdict,
)
from runners.tasks.grading.inside import pro_parser
from runners.tasks.grading.log_parsers import id_normalizer

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
PASSING = frozenset({"passed", "xfailed"})
PASSING_OR_SKIPPED = PASSING | {"skipped"}
"""Outcomes that ``swebench`` accepts of a pass-to-pass test, if the log names skipped tests."""
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
STATUSES = {"passed": "PASSED", "failed": "FAILED", "error": "ERROR"}
"""Outcome that the plugin reports → status in R2E-Gym's maps."""


def parser_mounts() -> dict[str, Path]:
    """Return ``script_mounts`` and the program that runs a parser; raises PytestMissingError."""
    return {**script_mounts(), PARSER_INSIDE: PARSER}


async def judge_script(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run a task's script and read its results.

    Raises SandboxError, KilledError if a program of ours in the sandbox was ended, PackageError
    and LostReaderError.
    """
    grading = _grading_of(task)
    script = await asyncio.to_thread(_write_script, task)
    parsed_apart = grading.kind == "log_parser"
    run = await run_script(
        grading.workdir, script, sandbox, deadline_s, image=task.image, apart=parsed_apart
    )
    if run.started and run.exit_code is None and run.late_s is None:
        raise KilledError("the runner of the script was killed")
    if parsed_apart:
        # After the tests' processes are gone, and outside the work tree.
        parsed = await sandbox.run(
            ["python", "-I", "-S", PARSER_INSIDE],
            deadline_s=PARSE_S,
            stdin=_encode_request(grading.parser, run),
            output_limit=OUTPUT_LIMIT,
        )
        if parsed.exit_code < 0:
            raise KilledError(f"the parser was ended by signal {-parsed.exit_code}")
        run = replace(run, parsed=parsed)
    return await asyncio.to_thread(judge_run, task, run)


def judge_run(task: Task, run: ScriptRun) -> Verdict:
    """Return the verdict on a run; blocks for some seconds where a package reads the log."""
    kind = _grading_of(task).kind
    if not run.started:  # nothing of the patch has run yet
        return make_verdict(task, VerdictKind.INFRA, "the script was not started", log=run.log)
    needs_pytest = kind in ("pytest", "status_map")
    if needs_pytest and not run.began and run.late_s is None:
        # A patch can cause it; calibration finds rows that do.
        return make_verdict(task, VerdictKind.UNSOLVED, "pytest did not start", log=run.log)
    return PARSERS[kind](task, run)


def _judge_pytest(task: Task, run: ScriptRun) -> Verdict:
    """Judge by the outcomes that our plugin reported; a test without a report has failed."""
    outcomes = normalize_ids(task, run.outcomes)
    return _judge(task, run, lambda name: find_result(name, outcomes))


def _judge_statuses(task: Task, run: ScriptRun) -> Verdict:
    """Judge as R2E-Gym: each test must have exactly the outcome that is expected of it, and no
    further test may be reported.

    Its names are pytest ids without the file, their parts joined by dots. Skipped tests have no
    outcome, as in pytest's summary, which the set reads.
    """
    expected = _cut_names(json.loads(_grading_of(task).parser))
    found = _cut_names(
        {
            ".".join(name.split("::")[1:]): STATUSES[outcome]
            for name, outcome in run.outcomes.items()
            if outcome in STATUSES
        }
    )

    def compare(name: str) -> TestResult:
        cut = _cut_name(name)
        if cut not in found:
            return "missing"
        return "passed" if found[cut] == expected[cut] else "failed"

    verdict = _judge(task, run, compare)
    further = sorted(found.keys() - expected.keys())
    if verdict.kind is VerdictKind.SOLVED and further:
        reason = f"{len(further)} tests ran that are not expected ({further[0]})"
        return replace(verdict, kind=VerdictKind.UNSOLVED, reason=reason)
    return verdict


def _cut_names(statuses: Mapping[str, str]) -> dict[str, str]:
    """Return a map under cut names, of equal ones the last in their order, as the set does."""
    return {_cut_name(name): statuses[name] for name in sorted(statuses)}


def _cut_name(name: str) -> str:
    """Return a name up to " - ", after which a summary has the reason; the set cuts parameters
    there, too.
    """
    return _COLORS.sub("", name).split(" - ")[0].strip()


def _judge_parsed(task: Task, run: ScriptRun) -> Verdict:
    """Judge by what the task's parser reported; what our pytest plugin saw fail has failed."""
    parsed = run.parsed
    assert parsed is not None
    run = replace(run, log=run.stdout + run.log)
    found = read_results(parsed)
    if parsed.timed_out:
        reason = f"the parser did not end within {parsed.duration_s:.0f} s"
        return make_verdict(task, VerdictKind.UNSOLVED, reason, log=run.log)
    if found is None:
        output = parsed.stderr[-400:].decode(errors="replace").strip()
        reason = f"the parser failed: {output}"
        return make_verdict(task, VerdictKind.UNSOLVED, reason, log=run.log)

    # A row or its parser may have lost the white space around a name.
    bare: dict[str, TestResult] = {}
    for name, result in found.items():
        bare[name.strip()] = "failed" if bare.get(name.strip()) == "failed" else result

    def result_of(name: str) -> TestResult:
        result = found.get(name, bare.get(name.strip(), "missing"))
        seen_to_fail = run.outcomes.get(name, "passed") not in PASSING
        return "failed" if result != "missing" and seen_to_fail else result

    return _judge(task, run, result_of, any_process=True)


def _judge_multi_swe(task: Task, run: ScriptRun) -> Verdict:
    """Judge by the package's reading of the log; where pytest ran, what it saw fail has failed."""
    found = read_multi_swe(task, run.log)
    if isinstance(found, str):
        return make_verdict(task, VerdictKind.UNSOLVED, found, log=run.log)
    passed, failed = found
    failed |= {name for name, outcome in run.outcomes.items() if outcome not in PASSING}

    def result_of(name: str) -> TestResult:
        if name in failed:
            return "failed"
        return "passed" if name in passed else "missing"

    return _judge(task, run, result_of, any_process=True)


def _judge_swebench(task: Task, run: ScriptRun) -> Verdict:
    return judge_report(task, run, read_swebench(task, run.log))


def judge_report(task: Task, run: ScriptRun, report: Mapping[str, object]) -> Verdict:
    """Judge by the official package's report on a log.

    Any code can print into a log and forge it. So where pytest ran, a test that passed according to
    the log must also have been reported as passed by our plugin.
    """
    status = report.get("tests_status")
    if not isinstance(status, Mapping):
        cause = report.get("infra_failure_reason") or "the log has no results"
        reason = f"the tests did not run: {cause}"
        if run.late_s is None:  # a patch can cause it; calibration finds rows that do
            return make_verdict(task, VerdictKind.UNSOLVED, reason, log=run.log)
        tests = list_results(task, lambda _: "missing")
        return judge_tests(task, tests, log=run.log, late_s=run.late_s)
    outcomes = normalize_ids(task, run.outcomes) if run.began else None

    def read_result(name: str, test_set: str, passing: frozenset[str]) -> TestResult:
        if name not in status[test_set]["success"]:
            return "failed"
        return "passed" if outcomes is None else find_result(name, outcomes, passing)

    verdict = _judge(
        task,
        run,
        lambda name: read_result(name, "FAIL_TO_PASS", PASSING),
        lambda name: read_result(name, "PASS_TO_PASS", PASSING_OR_SKIPPED),
    )
    return replace(verdict, official=bool(report["resolved"]))


def _judge_end(task: Task, run: ScriptRun) -> Verdict:
    """Return solved for exit code 0 of a command whose processes came to their end."""
    if _grading_of(task).parser:
        return _judge_pytest(task, run)
    code = -9 if run.exit_code is None else run.exit_code
    verdict = judge_exit_code(task, code, log=run.log, late_s=run.late_s)
    doubts = list(run.unproven.values())
    if _grading_of(task).kind == "f2p_script" and not run.reached:
        doubts.append("the program did not come to its end")
    if verdict.kind is VerdictKind.SOLVED and doubts:
        return make_verdict(task, VerdictKind.UNSOLVED, doubts[0], log=run.log)
    return verdict


PARSERS: dict[str, Callable[[Task, ScriptRun], Verdict]] = {
    "pytest": _judge_pytest,
    "swebench": _judge_swebench,
    "log_parser": _judge_parsed,
    "status_map": _judge_statuses,
    "multi_swe": _judge_multi_swe,
    "eval_cmd": _judge_end,
    "f2p_script": _judge_end,
}
"""By the ``kind`` of a script."""


def _grading_of(task: Task) -> ScriptGrading:
    assert isinstance(task.grading, ScriptGrading)
    return task.grading


def _write_script(task: Task) -> str:
    """Return the shell script of a task as its parser needs it; raises PackageError."""
    grading = _grading_of(task)
    match grading.kind:
        case "f2p_script":
            program = shlex.quote(grading.script)
            return RUN_PROGRAM.format(program=program, runner=PROGRAM_INSIDE)
        case "swebench":
            return build_eval_script(task)
    return grading.script


def _judge(
    task: Task,
    run: ScriptRun,
    result_of: Callable[[str], TestResult],
    result_of_kept: Callable[[str], TestResult] | None = None,
    *,
    any_process: bool = False,
) -> Verdict:
    """Judge by the tests' results; ``any_process``: not only the end of pytest must be proven."""
    unproven = run.unproven.get("pytest", "")
    if any_process:
        unproven = next(iter(run.unproven.values()), "")
    return judge_tests(
        task,
        list_results(task, result_of, result_of_kept),
        log=run.log,
        late_s=run.late_s,
        unproven=unproven,
        missing_passes=_grading_of(task).missing_passes,
    )


def normalize_ids(task: Task, outcomes: Mapping[str, str]) -> dict[str, str]:
    """Return the outcomes by the tests' names in the task; of equal names the worst counts."""
    naming = id_normalizer(json.loads(_grading_of(task).parser)["log_parser"])
    found: dict[str, str] = {}
    for name, outcome in outcomes.items():
        found[naming(name)] = worse_outcome(found.get(naming(name)), outcome)
    return found


def find_result(
    name: str, outcomes: Mapping[str, str], passing: frozenset[str] = PASSING
) -> TestResult:
    """Return the result of a test."""
    name = name if name in outcomes else name.strip()
    found = {outcomes[name]} if name in outcomes else set()
    if not found and name.count("[") > name.count("]"):
        found = {outcome for known, outcome in outcomes.items() if known.startswith(name)}
    if not found:
        return "missing"
    return "passed" if found <= passing else "failed"


def _encode_request(parser: str, run: ScriptRun) -> bytes:
    texts = {"stdout": run.stdout, "stderr": run.log}
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
