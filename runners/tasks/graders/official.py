"""Judges as the installed ``swebench`` package does, without its docker: our sandbox runs the eval
script, the package reads the log.

A log can be forged by whatever prints into it. So where pytest ran, a test that the log says passed
must have been reported as passed too.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode
from conf.suggestions import suggest
from runners.sandboxes.contract import Sandbox
from runners.tasks.contract import EvalScript, Task, Verdict, VerdictKind
from runners.tasks.graders.eval_script import ScriptRun, run_script, script_mounts
from runners.tasks.graders.pytest_ids import PASSING, has_passed, normalize_ids
from runners.tasks.graders.verdicts import PassedCounts, judge_counts, make_verdict
from runners.tasks.swebench import OF_PYTEST

MISSING = (
    "task.grader=official needs the package swebench>=5,<6: pip install 'agentrl[swebench]', or "
    "set task.grader=own"
)
NOT_BROKEN = PASSING | {"skipped"}
"""What the package takes of a pass-to-pass test, if the log names the skipped ones at all."""


EMPTY_REPORT = {
    "patch_is_None": False,
    "patch_exists": True,
    "patch_successfully_applied": False,
    "resolved": False,
    "infra_failure": False,
}
"""The package's report on a log without results."""


class OfficialError(AgentrlError):
    """The ``swebench`` package is missing, or does not take a row."""

    exit_code = ExitCode.PREFLIGHT


def is_installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("swebench") is not None


def check_parser(name: str) -> None:
    """Raise ValueError if the package has no log parser of that name; OfficialError without it."""
    if not is_installed():
        raise OfficialError(MISSING)
    if name in OF_PYTEST:
        return
    from swebench.harness.log_parsers import PARSER_REGISTRY

    if name not in PARSER_REGISTRY:
        hint = suggest(name, PARSER_REGISTRY, ": did you mean {}?")
        raise ValueError(f"the package swebench has no log_parser {name}{hint}")


class OfficialJudge:
    """Runs the eval script and asks the package what its log says."""

    def mounts(self, task: Task) -> Mapping[str, Path]:
        """Return pytest, its plugin and the runner."""
        return script_mounts()

    async def judge(self, task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
        """Run the tests; raises OfficialError."""
        assert isinstance(task.grading, EvalScript)
        spec = await asyncio.to_thread(build_spec, task)
        run = await run_script(task.grading, spec.eval_script, sandbox, deadline_s)
        return await asyncio.to_thread(judge_log, task, spec, run)


def build_spec(task: Task) -> Any:
    """Return the package's own description of a task; raises OfficialError."""
    assert isinstance(task.grading, EvalScript)
    try:
        from swebench.harness.utils import make_test_spec
    except ImportError as error:
        raise OfficialError(f"{MISSING} ({error})") from error
    row: dict[str, Any] = json.loads(task.grading.row)
    return make_test_spec(
        {
            **row,
            "instance_id": task.id,
            "FAIL_TO_PASS": list(task.fail_to_pass),
            "PASS_TO_PASS": list(task.pass_to_pass),
            "eval_script": task.grading.script,
        }
    )


build_spec.__test__ = False  # type: ignore[attr-defined]  # pytest: the name is not a test's


def judge_log(task: Task, spec: Any, run: ScriptRun) -> Verdict:
    """Return the verdict on a run; blocks while the package is imported (1 s, once)."""
    if not run.started and run.late_s is None:
        return make_verdict(task, VerdictKind.INFRA, "the script was not started", log=run.log)
    with tempfile.NamedTemporaryFile("wb", suffix=".log") as file:
        file.write(run.log.decode(errors="replace").encode())
        file.flush()
        report = read_report(task, spec, Path(file.name))
    status = report.get("tests_status")
    if status is None:
        said = report.get("infra_failure_reason") or "the log has no results"
        reason = f"the tests did not run: {said}"
        if run.late_s is None:  # a patch can do that; calibration finds the others
            return make_verdict(task, VerdictKind.UNSOLVED, reason, log=run.log)
        return judge_counts(task, PassedCounts(), log=run.log, late_s=run.late_s)
    mended, kept = status["FAIL_TO_PASS"]["success"], status["PASS_TO_PASS"]["success"]
    if run.began:
        outcomes = normalize_ids(task, run.outcomes)
        mended = [name for name in mended if has_passed(name, outcomes)]
        kept = [name for name in kept if has_passed(name, outcomes, NOT_BROKEN)]
    return judge_counts(task, PassedCounts(len(mended), len(kept)), log=run.log, late_s=run.late_s)


def read_report(task: Task, spec: Any, log: Path) -> dict[str, Any]:
    """Return what ``get_eval_report`` says of a log; nothing is resolved in one that its parser
    stumbles over, which any printed line can bring about.
    """
    from swebench.harness.grading import get_eval_report

    prediction = {"instance_id": task.id, "model_name_or_path": "agentrl", "model_patch": "x"}
    try:
        report: dict[str, dict[str, Any]] = get_eval_report(
            spec, prediction, str(log), include_tests_status=True
        )
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        said = f"{spec.log_parser} cannot read the log ({type(error).__name__}: {error})"
        return {**EMPTY_REPORT, "infra_failure_reason": said}
    return report[task.id]
