"""Calibrate a benchmark: each task's reference patch must solve it, and the empty patch must not.

A task that fails this test says nothing about a policy. It is named, and evaluations in the same
run directory leave it out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ExitCode
from conf.schema import Config
from runners.campaigns.evaluation.benchmarks import Benchmark
from runners.campaigns.evaluation.execution import Execution, execute
from runners.campaigns.evaluation.files import CALIBRATION, replace_file
from runners.campaigns.evaluation.plan import Instance, select_tasks
from runners.records.store import RunStore
from runners.services.driver import Interrupted, RunEnd
from runners.services.services import start_grader
from runners.system.concurrency import task_group
from runners.tasks.contract import HarborVerifier, Task, Verdict, VerdictKind
from runners.tasks.grading import Grader

EVENT = "calibrated"


class CalibrationFailed(AgentrlError):
    """Some tasks are unfit or could not be graded."""

    exit_code = ExitCode.FAILURE_BUDGET


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """Result of a calibration."""

    document: dict[str, Any]
    """``run_dir, benchmark, tasks, gold_solved, empty_solved, fit, set_aside: {id: reason},
    not_graded: {id: reason}``.
    """
    end: RunEnd


def calibrate(
    benchmark: Benchmark, config: Config, run_dir: Path, *, resume: bool = False
) -> CalibrationResult:
    """Grade both patches of every task; with ``resume``, of those that are not graded yet.

    See ``execute`` for the errors.
    """
    calibration, end = execute(_Calibration, benchmark, config, run_dir, resume=resume)
    return CalibrationResult(calibration.final, end)


def load_unfit(store: RunStore) -> dict[str, str]:
    """Return the tasks that a calibration in this run found unfit: id → reason."""
    return {
        name: finding["reason"]
        for name, finding in _load_findings(store).items()
        if finding["kind"] == "unfit"
    }


class _Calibration:
    """One execution of a calibration. Each object is used once."""

    def __init__(self, execution: Execution) -> None:
        self.final: dict[str, Any] = {}
        """The document of the result; empty before ``write``."""
        self._execution = execution
        self._instances: Sequence[Instance] = ()

    async def work(self) -> None:
        """Grade the tasks without a verdict; raises Interrupted and CalibrationFailed."""
        execution = self._execution
        self._instances = (
            await asyncio.to_thread(select_tasks, execution.benchmark, execution.config)
        ).instances
        findings = _load_findings(execution.store)
        done = {name for name, finding in findings.items() if finding["kind"] != "not_graded"}
        left = [i.task for i in self._instances if i.task.id not in done]
        execution.progress.begin_phase("calibration", len(left))
        slots = asyncio.Semaphore(execution.config.rollout.concurrency)
        async with start_grader(execution.config, execution.store) as grader, task_group() as group:
            for task in left:
                group.create_task(
                    self._grade_task(task, grader, slots), name=f"calibrate-{task.id}"
                )
        document = self._document()
        aside, lost = len(document["set_aside"]), len(document["not_graded"])
        if document["fit"] + aside + lost < document["tasks"]:
            raise Interrupted
        if aside or lost:
            raise CalibrationFailed(
                f"of {document['tasks']} tasks {aside} are set aside and {lost} could not be graded"
            )

    async def _grade_task(self, task: Task, grader: Grader, slots: asyncio.Semaphore) -> None:
        execution = self._execution
        deadline_s = execution.config.rollout.deadlines.grade_s
        async with slots:
            if execution.driver.draining.is_set():
                return
            gold, empty = [
                await grader.grade_reference(
                    task, solve=solve, name=f"{task.id}-{name}", deadline_s=deadline_s
                )
                for name, solve in (("gold", True), ("empty", False))
            ]
        kind, reason = _classify(task, gold, empty)
        verdicts = {"gold": gold.kind, "empty": empty.kind}
        execution.store.event(EVENT, {"task": task.id, "kind": kind, "reason": reason, **verdicts})
        execution.progress.batch_done += 1
        execution.progress.outcomes[kind] += 1

    def write(self) -> None:
        """Write ``calibration.json``; raises StoreError."""
        self.final = self._document()
        text = json.dumps(self.final, indent=2)
        replace_file(self._execution.store.run_dir / CALIBRATION, text + "\n")

    def _document(self) -> dict[str, Any]:
        """Return the findings about the selected tasks."""
        findings = _load_findings(self._execution.store)
        found = {i.task.id: findings[i.task.id] for i in self._instances if i.task.id in findings}

        def reasons(kind: str) -> dict[str, str]:
            return {
                name: finding["reason"]
                for name, finding in found.items()
                if finding["kind"] == kind
            }

        return {
            "run_dir": str(self._execution.store.run_dir),
            "benchmark": self._execution.benchmark.name,
            "tasks": len(self._instances),
            "gold_solved": sum(finding["gold"] == "solved" for finding in found.values()),
            "empty_solved": sum(finding["empty"] == "solved" for finding in found.values()),
            "fit": len(reasons("fit")),
            "set_aside": reasons("unfit"),
            "not_graded": reasons("not_graded"),
        }


def _load_findings(store: RunStore) -> dict[str, dict[str, Any]]:
    """Return the last finding about each task, by id: ``kind`` (fit, unfit or not_graded),
    ``reason``, and the verdicts on both patches.
    """
    return {event.data["task"]: event.data for event in store.events(EVENT)}


def _classify(task: Task, gold: Verdict, empty: Verdict) -> tuple[str, str]:
    if not task.gold_patch and not isinstance(task.grading, HarborVerifier):
        solved = " (the empty one solves it)" if empty.kind is VerdictKind.SOLVED else ""
        return "unfit", f"it has no reference patch that could be graded{solved}"
    for name, verdict in (("reference", gold), ("empty", empty)):
        if verdict.kind is VerdictKind.INFRA:
            return "not_graded", f"the {name} patch could not be graded: {verdict.reason}"
    if gold.kind is not VerdictKind.SOLVED:
        return "unfit", f"the reference patch does not solve it: {gold.reason}"
    if empty.kind is VerdictKind.SOLVED:
        return "unfit", "the empty patch solves it"
    return "fit", ""
