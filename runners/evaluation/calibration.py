"""Calibration: of each task the reference patch must be graded solved and the empty one not.

A task that fails this says nothing about a policy. It is named, and an evaluation in the same run
directory leaves it out.
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
from runners.concurrency.task_group import task_group
from runners.evaluation.benchmarks import Benchmark
from runners.evaluation.execution import Execution, execute
from runners.evaluation.files import CALIBRATION, replace_file
from runners.evaluation.plan import Instance, select
from runners.runtime.driver import End, Interrupted
from runners.runtime.services import running_grader
from runners.store.run_store import RunStore
from runners.tasks.contract import Grader, Task, Verdict, VerdictKind
from runners.tasks.patch_record import decode_patch

EVENT = "calibrated"


class Miscalibrated(AgentrlError):
    """Some tasks are unfit, or could not be graded."""

    exit_code = ExitCode.FAILURE_BUDGET


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """How a calibration ended."""

    document: dict[str, Any]
    """``run_dir, benchmark, tasks, gold_solved, empty_solved, fit, set_aside: {id: reason},
    not_graded: {id: reason}``.
    """
    end: End


def calibrate(
    benchmark: Benchmark, config: Config, run_dir: Path, *, resume: bool = False
) -> CalibrationResult:
    """Grade both patches of every task, or of those that a stopped calibration has left; see
    ``execute``.
    """
    calibration, end = execute(_Calibration, benchmark, config, run_dir, resume=resume)
    return CalibrationResult(calibration.final, end)


def unfit(store: RunStore) -> dict[str, str]:
    """Return the tasks that a calibration in this run set aside: id → reason."""
    return {
        name: said["reason"] for name, said in _judged(store).items() if said["kind"] == "unfit"
    }


class _Calibration:
    """One execution of a calibration; used once."""

    def __init__(self, execution: Execution) -> None:
        self.final: dict[str, Any] = {}
        """What is known, once it is written."""
        self._execution = execution
        self._instances: Sequence[Instance] = ()

    async def work(self) -> None:
        """Grade what is not judged yet; raises Interrupted and, at the end, Miscalibrated."""
        at = self._execution
        self._instances = (await asyncio.to_thread(select, at.benchmark, at.config)).instances
        judged = _judged(at.store)
        done = {name for name, said in judged.items() if said["kind"] != "not_graded"}
        left = [i.task for i in self._instances if i.task.id not in done]
        at.progress.begin_phase("calibration", len(left))
        room = asyncio.Semaphore(at.config.rollout.concurrency)
        async with running_grader(at.config, at.store) as grader, task_group() as group:
            for task in left:
                group.create_task(self._judge(task, grader, room), name=f"calibrate-{task.id}")
        document = self._document()
        aside, lost = len(document["set_aside"]), len(document["not_graded"])
        if document["fit"] + aside + lost < document["tasks"]:
            raise Interrupted
        if aside or lost:
            raise Miscalibrated(
                f"of {document['tasks']} tasks {aside} are set aside and {lost} could not be graded"
            )

    async def _judge(self, task: Task, grader: Grader, room: asyncio.Semaphore) -> None:
        at = self._execution
        deadline_s = at.config.rollout.deadlines.grade_s
        async with room:
            if at.driver.draining.is_set():
                return
            gold, empty = [
                await grader.grade(
                    task, decode_patch(diff, {}), name=f"{task.id}-{name}", deadline_s=deadline_s
                )
                for name, diff in (("gold", task.gold_patch), ("empty", ""))
            ]
        kind, said = _fit(gold, empty)
        verdicts = {"gold": gold.kind, "empty": empty.kind}
        at.store.event(EVENT, {"task": task.id, "kind": kind, "reason": said, **verdicts})
        at.progress.batch_done += 1
        at.progress.outcomes[kind] += 1

    def write(self) -> None:
        """Write what is known; raises StoreError."""
        self.final = self._document()
        text = json.dumps(self.final, indent=2)
        replace_file(self._execution.store.run_dir / CALIBRATION, text + "\n")

    def _document(self) -> dict[str, Any]:
        """Return what is known of the chosen tasks."""
        judged = _judged(self._execution.store)
        found = {i.task.id: judged[i.task.id] for i in self._instances if i.task.id in judged}

        def reasons(kind: str) -> dict[str, str]:
            return {name: said["reason"] for name, said in found.items() if said["kind"] == kind}

        return {
            "run_dir": str(self._execution.store.run_dir),
            "benchmark": self._execution.benchmark.name,
            "tasks": len(self._instances),
            "gold_solved": sum(said["gold"] == "solved" for said in found.values()),
            "empty_solved": sum(said["empty"] == "solved" for said in found.values()),
            "fit": len(reasons("fit")),
            "set_aside": reasons("unfit"),
            "not_graded": reasons("not_graded"),
        }


def _judged(store: RunStore) -> dict[str, dict[str, Any]]:
    """Return what was found of each task last: ``kind`` (fit, unfit or not_graded) and ``reason``,
    and the verdicts on both patches.
    """
    return {event.data["task"]: event.data for event in store.events(EVENT)}


def _fit(gold: Verdict, empty: Verdict) -> tuple[str, str]:
    for name, verdict in (("reference", gold), ("empty", empty)):
        if verdict.kind is VerdictKind.INFRA:
            return "not_graded", f"the {name} patch could not be graded: {verdict.reason}"
    if gold.kind is not VerdictKind.SOLVED:
        return "unfit", f"the reference patch does not solve it: {gold.reason}"
    if empty.kind is VerdictKind.SOLVED:
        return "unfit", "the empty patch solves it"
    return "fit", ""
