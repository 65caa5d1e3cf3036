"""Judge of Multi-SWE: the image's script runs the tests, ``multi-swe-bench`` reads the log.

The package has one log parser per repository. It only reads text here: its docker is not used. Any
code can print into a log and forge it; where pytest ran, what our plugin saw fail has failed.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode
from runners.sandboxes.contract import Sandbox
from runners.tasks.contract import MultiSweLog, Task, TestResult, Verdict, VerdictKind
from runners.tasks.graders.eval_script import PASSING, ScriptRun, run_script
from runners.tasks.graders.log_reader import UnreadableLogError, answer, log_file, read_apart
from runners.tasks.graders.verdicts import judge_tests, list_results, make_verdict

PACKAGE = "multi_swe_bench"
MISSING = (
    "rows of Multi-SWE need the log parsers of the package multi-swe-bench: pip install "
    "multi-swe-bench"
)
MODULE = "runners.tasks.graders.multi_swe"
"""This module, which reads logs as a program too."""


class MultiSweError(AgentrlError):
    """The package ``multi-swe-bench`` is missing."""

    exit_code = ExitCode.PREFLIGHT


def check_package(request: dict[str, Any]) -> None:
    """Raise MultiSweError without the package, ValueError if it has no parser for a repository."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise MultiSweError(MISSING)
    make_instance(request)


def make_instance(request: Mapping[str, Any]) -> Any:
    """Return the package's object of a pull request, which parses its logs; raises ValueError."""
    harness = f"{PACKAGE}.harness"
    importlib.import_module(f"{harness}.repos")  # registers the parsers of all repositories
    image = importlib.import_module(f"{harness}.image")
    instance = importlib.import_module(f"{harness}.instance").Instance
    pull = importlib.import_module(f"{harness}.pull_request")
    base = pull.Base(label="", ref="", sha="")
    request_object = pull.PullRequest(
        **request,
        state="",
        title="",
        body="",
        base=base,
        resolved_issues=[],
        fix_patch="",
        test_patch="",
    )
    config = image.Config(need_clone=False, global_env=None, clear_env=False)
    return instance.create(request_object, config)


async def judge_multi_swe(task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
    """Run the tests; the package's reading of the log decides."""
    grading = task.grading
    assert isinstance(grading, MultiSweLog)
    run = await run_script(grading.workdir, grading.script, sandbox, deadline_s, image=task.image)
    return await asyncio.to_thread(judge_log, task, run)


def judge_log(task: Task, run: ScriptRun) -> Verdict:
    """Return the verdict on a run; blocks for some seconds."""
    assert isinstance(task.grading, MultiSweLog)
    if not run.started and run.late_s is None:
        return make_verdict(task, VerdictKind.INFRA, "the script was not started", log=run.log)
    try:
        with log_file(run.log) as file:
            request = {"pull": json.loads(task.grading.request), "log": str(file)}
            found = read_apart(MODULE, request)
    except UnreadableLogError as error:
        reason = f"the log cannot be read: {error}"
        return make_verdict(task, VerdictKind.UNSOLVED, reason, log=run.log)
    passed, seen = set(found["passed"]), set(found["others"])
    seen |= {name for name, outcome in run.outcomes.items() if outcome not in PASSING}

    def result_of(name: str) -> TestResult:
        if name in seen:
            return "failed"
        return "passed" if name in passed else "missing"

    unproven = next(iter(run.unproven.values()), "")
    return judge_tests(
        task, list_results(task, result_of), log=run.log, late_s=run.late_s, unproven=unproven
    )


def read_log(request: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the tests that passed, and the other ones."""
    found = make_instance(request["pull"]).parse_log(Path(request["log"]).read_text())
    others = {*found.failed_tests, *found.skipped_tests}
    return {"passed": sorted(found.passed_tests), "others": sorted(others)}


if __name__ == "__main__":
    answer(read_log)
