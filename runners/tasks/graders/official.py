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
from runners.sandboxes.contract import Sandbox
from runners.tasks.contract import EvalScript, Task, Verdict, VerdictKind
from runners.tasks.graders.pytest_ids import tally as tally_of
from runners.tasks.graders.scripts import ScriptRun, run_script, script_mounts
from runners.tasks.graders.verdicts import Tally, counted, verdict


class OfficialError(AgentrlError):
    """The ``swebench`` package is missing, or does not take a row."""

    exit_code = ExitCode.PREFLIGHT


def installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec("swebench") is not None


class OfficialJudge:
    """Runs the eval script and asks the package what its log says."""

    def mounts(self, task: Task) -> Mapping[str, Path]:
        """Return pytest, its plugin and the runner."""
        return script_mounts()

    async def judge(self, task: Task, sandbox: Sandbox, deadline_s: float) -> Verdict:
        """Run the tests; raises OfficialError."""
        assert isinstance(task.grading, EvalScript)
        spec = await asyncio.to_thread(test_spec, task)
        run = await run_script(task.grading, spec.eval_script, sandbox, deadline_s)
        return await asyncio.to_thread(read, task, spec, run)


def test_spec(task: Task) -> Any:
    """Return the package's own description of a task; raises OfficialError."""
    assert isinstance(task.grading, EvalScript)
    try:
        from swebench.harness.utils import make_test_spec
    except ImportError as error:
        raise OfficialError(
            f"task.grader=official needs the package swebench>=5,<6 ({error}): "
            "pip install 'agentrl[swebench]', or set task.grader=own"
        ) from error
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


test_spec.__test__ = False  # type: ignore[attr-defined]  # pytest: the name is not a test's


def read(task: Task, spec: Any, run: ScriptRun) -> Verdict:
    """Return the verdict on a run; blocks while the package is imported (1 s, once)."""
    if not run.started and run.late_s is None:
        return verdict(task, VerdictKind.INFRA, "the script was not started", log=run.log)
    report = official_report(task, spec, run.log)
    status = report.get("tests_status")
    if status is None:
        said = report.get("infra_failure_reason") or "the log has no results"
        reason = f"the tests did not run: {said}"
        if run.late_s is None:  # a patch can do that; calibration finds the others
            return verdict(task, VerdictKind.UNSOLVED, reason, log=run.log)
        return counted(task, Tally(), log=run.log, late_s=run.late_s)
    said_passed = Tally(
        len(status["FAIL_TO_PASS"]["success"]), len(status["PASS_TO_PASS"]["success"])
    )
    reported = tally_of(task, run.outcomes) if run.began else said_passed
    tally = Tally(
        min(said_passed.fail_to_pass, reported.fail_to_pass),
        min(said_passed.pass_to_pass, reported.pass_to_pass),
    )
    return counted(task, tally, log=run.log, late_s=run.late_s)


def official_report(task: Task, spec: Any, log: bytes) -> dict[str, Any]:
    """Return what ``get_eval_report`` says of a log."""
    from swebench.harness.grading import get_eval_report

    prediction = {"instance_id": task.id, "model_name_or_path": "agentrl", "model_patch": "x"}
    with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8") as file:
        file.write(log.decode(errors="replace"))
        file.flush()
        report: dict[str, dict[str, Any]] = get_eval_report(
            spec, prediction, file.name, include_tests_status=True
        )
    return report[task.id]
