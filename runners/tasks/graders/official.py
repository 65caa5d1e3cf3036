"""Judge of the ``swebench`` package, without its docker: our sandbox runs the eval script, the
package reads the log.

Any code can print into a log and forge it. So where pytest ran, a test that passed according to the
log must also have been reported as passed by our plugin.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode
from conf.suggestions import suggest
from runners.sandboxes.contract import Sandbox
from runners.tasks.contract import EvalScript, Task, TestResult, Verdict, VerdictKind
from runners.tasks.graders.eval_script import (
    PASSING,
    ScriptRun,
    find_result,
    normalize_ids,
    run_script,
)
from runners.tasks.graders.log_reader import (
    READ_S,
    UnreadableLogError,
    answer,
    log_file,
    read_apart,
)
from runners.tasks.graders.verdicts import judge_tests, list_results, make_verdict
from runners.tasks.log_parsers import PYTEST_PARSERS

MISSING = (
    "task.grader=official needs the package swebench>=5,<6: pip install 'agentrl[swebench]', or "
    "set task.grader=own"
)
PASSING_OR_SKIPPED = PASSING | {"skipped"}
"""Outcomes that the package accepts of a pass-to-pass test, if the log names skipped tests."""

MODULE = "runners.tasks.graders.official"
"""This module, which reads logs as a program too."""
EMPTY_REPORT = {
    "patch_is_None": False,
    "patch_exists": True,
    "patch_successfully_applied": False,
    "resolved": False,
    "infra_failure": False,
}
"""Report of the package on a log without results."""


class OfficialError(AgentrlError):
    """The ``swebench`` package is missing, or does not accept a row."""

    exit_code = ExitCode.PREFLIGHT


def is_installed() -> bool:
    """Return whether the package is installed."""
    return importlib.util.find_spec("swebench") is not None


def check_parser(name: str) -> None:
    """Raise ValueError if the package has no such log parser, OfficialError if it is missing."""
    if not is_installed():
        raise OfficialError(MISSING)
    if name in PYTEST_PARSERS:
        return
    from swebench.harness.log_parsers import PARSER_REGISTRY

    if name not in PARSER_REGISTRY:
        hint = suggest(name, PARSER_REGISTRY, ": did you mean {}?")
        raise ValueError(f"the package swebench has no log_parser {name}{hint}")


async def judge_official(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run the tests; the package's reading of the log decides. Raises OfficialError."""
    assert isinstance(task.grading, EvalScript)
    spec = await asyncio.to_thread(build_spec, task)
    run = await run_script(
        task.grading.workdir, spec.eval_script, sandbox, deadline_s, image=task.image
    )
    if not run.started and run.late_s is None:
        return make_verdict(task, VerdictKind.INFRA, "the script was not started", log=run.log)
    return await asyncio.to_thread(judge_log, task, run)


def describe_instance(task: Task) -> dict[str, Any]:
    """Return a task's row as the package takes it."""
    assert isinstance(task.grading, EvalScript)
    return {
        **json.loads(task.grading.row),
        "instance_id": task.id,
        "FAIL_TO_PASS": list(task.fail_to_pass),
        "PASS_TO_PASS": list(task.pass_to_pass),
        "eval_script": task.grading.script,
    }


def build_spec(task: Task) -> Any:
    """Return the package's ``TestSpec`` of a task; raises OfficialError."""
    try:
        from swebench.harness.utils import make_test_spec
    except ImportError as error:
        raise OfficialError(f"{MISSING} ({error})") from error
    return make_test_spec(describe_instance(task))


def judge_log(task: Task, run: ScriptRun, *, read_s: float = READ_S) -> Verdict:
    """Return the verdict on a run, whose log a process reads; blocks for 1 s or more."""
    with log_file(run.log) as file:
        (report,) = read_logs([(task, file)], read_s=read_s)
    return judge_report(task, run, report)


def read_logs(logs: Sequence[tuple[Task, Path]], *, read_s: float = READ_S) -> list[dict[str, Any]]:
    """Return the package's reports on the logs of tasks; a process reads them.

    One that does not come to an end with all of them is followed by one for each.
    """
    instances = [{**describe_instance(task), "log": str(file)} for task, file in logs]
    try:
        found: list[dict[str, Any]] = read_apart(
            MODULE, {"instances": instances}, deadline_s=read_s
        )
    except UnreadableLogError as error:
        if len(logs) > 1:
            return [report for each in logs for report in read_logs([each], read_s=read_s)]
        return [{**EMPTY_REPORT, "infra_failure_reason": f"the log cannot be read: {error}"}]
    return found


def judge_report(task: Task, run: ScriptRun, report: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a run by the package's report on its log."""
    status = report.get("tests_status")
    if status is None:
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

    tests = list_results(
        task,
        lambda name: read_result(name, "FAIL_TO_PASS", PASSING),
        lambda name: read_result(name, "PASS_TO_PASS", PASSING_OR_SKIPPED),
    )
    verdict = judge_tests(
        task, tests, log=run.log, late_s=run.late_s, unproven=run.unproven.get("pytest", "")
    )
    return replace(verdict, official=bool(report["resolved"]))


def read_report(instance: dict[str, Any], log: str) -> dict[str, Any]:
    """Return the package's report on a log file, read in this process.

    A printed line can make its parser raise: such a log counts as one without results.
    """
    from swebench.harness.grading import get_eval_report
    from swebench.harness.utils import make_test_spec

    name, spec = instance["instance_id"], make_test_spec(instance)
    prediction = {"instance_id": name, "model_name_or_path": "agentrl", "model_patch": "x"}
    try:
        report: dict[str, dict[str, Any]] = get_eval_report(
            spec, prediction, log, include_tests_status=True
        )
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        reason = f"{spec.log_parser} cannot read the log ({type(error).__name__}: {error})"
        return {**EMPTY_REPORT, "infra_failure_reason": reason}
    return report[name]


def read_reports(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the package's reports on the logs of instances."""
    return [read_report(instance, instance.pop("log")) for instance in request["instances"]]


if __name__ == "__main__":
    answer(read_reports)
