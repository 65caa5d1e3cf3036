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
from runners.driver import Driver, Interrupted, open_run
from runners.evaluation.benchmarks import Benchmark
from runners.evaluation.files import CALIBRATION, replace_file
from runners.evaluation.plan import Instance, select
from runners.observe.progress import Progress
from runners.stack import running_grader
from runners.taskgroup import task_group
from runners.tasks.contract import Grader, Task, Verdict, VerdictKind
from runners.tasks.stored import patch_of
from runners.trajectory.store import RunStore

EVENT = "calibrated"


class Miscalibrated(AgentrlError):
    """Some tasks are unfit, or could not be graded."""

    exit_code = ExitCode.FAILURE_BUDGET


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """How a calibration ended."""

    document: dict[str, Any]
    """``run_dir, tasks, fit, set_aside: {id: reason}, not_graded: {id: reason}``."""
    exit_code: ExitCode
    message: str


def calibrate(
    benchmark: Benchmark, config: Config, run_dir: Path, *, resume: bool = False
) -> CalibrationResult:
    """Grade both patches of every task, or of those that a stopped calibration has left.

    Raises AgentrlError only for what makes a start impossible.
    """
    with open_run(config, run_dir, resume=resume) as store:
        progress = Progress(store.run_dir.name, steps=0)
        driver = Driver(config, store, progress, benchmark=benchmark.name)
        calibration = _Calibration(benchmark, config, store, driver, progress)
        end = driver.run(calibration.work, calibration.write)
        return CalibrationResult(calibration.document(), end.exit_code, end.message)


def unfit(store: RunStore) -> dict[str, str]:
    """Return the tasks that a calibration in this run set aside: id → reason."""
    return {name: said for name, (kind, said) in _judged(store).items() if kind == "unfit"}


class _Calibration:
    """One execution of a calibration; used once."""

    def __init__(
        self,
        benchmark: Benchmark,
        config: Config,
        store: RunStore,
        driver: Driver,
        progress: Progress,
    ) -> None:
        self._benchmark = benchmark
        self._config = config
        self._store = store
        self._driver = driver
        self._progress = progress
        self._instances: Sequence[Instance] = ()

    async def work(self) -> None:
        """Grade what is not judged yet; raises Interrupted and, at the end, Miscalibrated."""
        config = self._config
        self._instances = (await asyncio.to_thread(select, self._benchmark, config)).instances
        done = {name for name, (kind, _) in _judged(self._store).items() if kind != "not_graded"}
        left = [i.task for i in self._instances if i.task.id not in done]
        self._progress.begin_phase("calibration", len(left))
        room = asyncio.Semaphore(config.rollout.concurrency)
        async with running_grader(config, self._store) as grader, task_group() as group:
            for task in left:
                group.create_task(self._judge(task, grader, room), name=f"calibrate-{task.id}")
        document = self.document()
        aside, lost = len(document["set_aside"]), len(document["not_graded"])
        if document["fit"] + aside + lost < document["tasks"]:
            raise Interrupted
        if aside or lost:
            raise Miscalibrated(
                f"of {document['tasks']} tasks {aside} are set aside and {lost} could not be graded"
            )

    async def _judge(self, task: Task, grader: Grader, room: asyncio.Semaphore) -> None:
        deadline_s = self._config.rollout.deadlines.grade_s
        async with room:
            if self._driver.draining.is_set():
                return
            verdicts = [
                await grader.grade(
                    task, patch_of(diff, {}), name=f"{task.id}-{name}", deadline_s=deadline_s
                )
                for name, diff in (("gold", task.gold_patch), ("empty", ""))
            ]
        kind, said = _fit(*verdicts)
        self._store.event(EVENT, {"task": task.id, "kind": kind, "reason": said})
        self._progress.batch_done += 1
        self._progress.outcomes[kind] += 1

    def write(self) -> None:
        """Write what is known; raises StoreError."""
        text = json.dumps(self.document(), indent=2)
        replace_file(self._store.run_dir / CALIBRATION, text + "\n")

    def document(self) -> dict[str, Any]:
        """Return what is known of the chosen tasks."""
        judged = _judged(self._store)
        found = {i.task.id: judged[i.task.id] for i in self._instances if i.task.id in judged}
        by_kind = {
            kind: {name: said for name, (k, said) in found.items() if k == kind}
            for kind in ("fit", "unfit", "not_graded")
        }
        return {
            "run_dir": str(self._store.run_dir),
            "benchmark": self._benchmark.name,
            "tasks": len(self._instances),
            "fit": len(by_kind["fit"]),
            "set_aside": by_kind["unfit"],
            "not_graded": by_kind["not_graded"],
        }


def _judged(store: RunStore) -> dict[str, tuple[str, str]]:
    """Return what was found of each task last: fit, unfit or not_graded, and why."""
    return {e.data["task"]: (e.data["kind"], e.data["reason"]) for e in store.events(EVENT)}


def _fit(gold: Verdict, empty: Verdict) -> tuple[str, str]:
    for name, verdict in (("reference", gold), ("empty", empty)):
        if verdict.kind is VerdictKind.INFRA:
            return "not_graded", f"the {name} patch could not be graded: {verdict.reason}"
    if gold.kind is not VerdictKind.SOLVED:
        return "unfit", f"the reference patch does not solve it: {gold.reason}"
    if empty.kind is VerdictKind.SOLVED:
        return "unfit", "the empty patch solves it"
    return "fit", ""
