"""Grade stored patches again, without policy, gateway and engine.

A trajectory is durable before it is graded, so one whose grading was cut off or failed needs no new
rollout; and after a bug in a grader is fixed, every patch can be graded again. The replaced verdict
is kept in an event. Records of finished training steps are not changed: the step was trained on
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from conf.compose import compose
from conf.errors import ExitCode
from conf.resume import resume_config
from conf.schema import Config
from runners.campaigns.evaluation.benchmarks import BENCHMARKS
from runners.campaigns.evaluation.run import rewrite_results
from runners.observe.live import LiveView, Progress
from runners.records.outcome import OutcomeCode, Stage
from runners.records.record import RolloutRecord
from runners.records.store import RunStore, StoreError
from runners.rollouts.contract import (
    conclude,
    rebuild_result,
    verdict_to_dict,
    with_reward,
)
from runners.rollouts.reward import RolloutReward, make_reward
from runners.services.services import start_grader
from runners.system.concurrency import task_group
from runners.system.plugins import PluginFailedError
from runners.tasks.contract import Task, Verdict, VerdictKind
from runners.tasks.grading import Grader, RolloutResult
from runners.tasks.sets import load_tasks

EVENT = "regraded"


@dataclass(frozen=True, slots=True)
class Flip:
    """A rollout whose verdict changed."""

    rollout_id: str
    task_id: str
    before: str
    """solved or unsolved."""
    after: str


@dataclass(frozen=True, slots=True)
class RegradeResult:
    """Result of a regrading."""

    run_dir: str
    chosen: int
    """Number of rollouts to grade."""
    graded: int
    solved: int
    flips: tuple[Flip, ...]
    not_graded: dict[str, str]
    """Rollouts that still have no verdict: id → reason."""
    exit_code: ExitCode

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``--json``."""
        return asdict(self) | {"exit_code": int(self.exit_code)}


def regrade(
    run_dir: Path, overrides: list[str], *, only: str | None = None, everything: bool = False
) -> RegradeResult:
    """Grade rollouts with a stored patch and no verdict; with ``everything``, those with one too.

    ``only`` restricts them to one outcome code. Each verdict is stored at once. Raises
    AgentrlError.
    """
    with RunStore.open(run_dir) as store:
        state = store.state()
        if state.driven and state.driver:
            raise StoreError(
                f"the run in {run_dir} is driven by process {state.driver.pid}: wait for its end",
                ExitCode.USAGE,
            )
        stored = store.config()
        config = resume_config(stored, overrides, also=("sandbox.",))
        chosen = [
            record
            for record in find_candidates(store, everything=everything)
            if only is None or record.outcome.code == only
        ]
        work = _Regrade(config, store, chosen)
        code = ExitCode.DONE
        try:
            asyncio.run(work.run())
        except KeyboardInterrupt:  # All verdicts so far are stored.
            code = ExitCode.INTERRUPTED
        if work.graded and (name := state.info.get("benchmark")):
            rewrite_results(store, BENCHMARKS[name], compose([], base=stored))
        if not code and work.not_graded:
            code = ExitCode.FAILURE_BUDGET
        return RegradeResult(
            run_dir=str(run_dir),
            chosen=len(chosen),
            graded=work.graded,
            solved=work.solved,
            flips=tuple(work.flips),
            not_graded=work.not_graded,
            exit_code=code,
        )


def find_candidates(store: RunStore, *, everything: bool) -> Iterator[RolloutRecord]:
    """Yield the attempt to grade of each rollout.

    Of a rollout without a verdict it is the last attempt whose patch was captured; of a graded
    rollout, if ``everything``, the final attempt.
    """
    for _, attempts in groupby(store.each_rollout(), lambda record: record.rollout_id):
        records = list(attempts)
        graded = [r for r in records if r.counts and r.solved is not None]
        if not graded:
            yield from [r for r in records if _has_captured_patch(r)][-1:]
        elif everything:
            yield graded[0]


def _has_captured_patch(record: RolloutRecord) -> bool:
    """Return whether the attempt reached its grading, so that its patch is the agent's work."""
    return record.outcome.meaning.reward_counts or record.outcome.stage is Stage.GRADE


class _Regrade:
    """Grades records. Each object is used once."""

    def __init__(self, config: Config, store: RunStore, records: Sequence[RolloutRecord]) -> None:
        self.graded = 0
        self.solved = 0
        self.flips: list[Flip] = []
        self.not_graded: dict[str, str] = {}
        self._config = config
        self._store = store
        self._records = records
        self._reward = make_reward(config.reward)
        self._trained = store.finished_steps()

    async def run(self) -> None:
        if not self._records:
            return
        progress = Progress(self._store.run_dir.name, steps=0)
        slots = asyncio.Semaphore(self._config.rollout.concurrency)
        with LiveView(progress, self._config.observe.dashboard):
            progress.begin_phase("grading", len(self._records))
            loaded = await asyncio.to_thread(load_tasks, self._config)
            tasks = {task.id: task for task in loaded}
            async with (
                start_grader(self._config, self._store) as (grader, _),
                task_group() as group,
            ):
                for record in self._records:
                    if record.task_id in tasks:
                        task = tasks[record.task_id]
                        group.create_task(self._grade_record(record, task, grader, slots, progress))
                    else:
                        self.not_graded[record.rollout_id] = f"there is no task {record.task_id}"

    async def _grade_record(
        self,
        record: RolloutRecord,
        task: Task,
        grader: Grader,
        slots: asyncio.Semaphore,
        progress: Progress,
    ) -> None:
        result = rebuild_result(record, self._store.session_summary(record.session_id))
        async with slots:
            verdict = await grader.grade(
                task,
                result,
                name=f"{record.session_id}-regrade",
                deadline_s=self._config.rollout.deadlines.grade_s,
            )
        reward, failure = None, verdict.reason
        if verdict.kind is not VerdictKind.INFRA:
            result = replace(result, outcome=conclude(result.outcome, verdict), verdict=verdict)
            try:
                reward = await self._reward(result, self._config.rollout.deadlines.grade_s)
            except PluginFailedError as error:
                failure = str(error)
        if reward is None:
            self.not_graded[record.rollout_id] = failure
            progress.add_rollout(OutcomeCode.GRADER_ERROR, 0)
            progress.columns["error"] += 1
            return
        self._store_verdict(record, result, verdict, reward)
        progress.add_rollout(verdict.kind, 0)
        progress.columns[verdict.kind] += 1

    def _is_trained(self, record: RolloutRecord) -> bool:
        """Return whether a finished step was trained on a rollout.

        In an asynchronous run that may be another step than the one for which it was dealt; an
        advantage, which is stored when a rollout is trained, tells.
        """
        overlaps = self._config.run.overlap != "none"
        return record.step in self._trained or (overlaps and record.advantage is not None)

    def _store_verdict(
        self, record: RolloutRecord, final: RolloutResult, verdict: Verdict, reward: RolloutReward
    ) -> None:
        solved = verdict.kind is VerdictKind.SOLVED
        self.graded += 1
        self.solved += solved
        flipped = record.solved is not None and record.solved != solved
        if flipped:
            before = "unsolved" if solved else "solved"
            self.flips.append(Flip(record.rollout_id, record.task_id, before, verdict.kind))
        self._store.event(
            EVENT,
            {
                "rollout_id": record.rollout_id,
                "attempt": record.attempt,
                "flipped": flipped,
                "before": {
                    "code": record.outcome.code,
                    "message": record.outcome.message,
                    "solved": record.solved,
                    "verdict": record.verdict,
                },
                "verdict": verdict_to_dict(verdict),
            },
        )
        if record.split == "train" and self._is_trained(record):
            return
        self._store.put_rollout(
            replace(
                with_reward(record, reward),
                counts=True,
                outcome=final.outcome,
                solved=solved,
                verdict=verdict_to_dict(verdict),
            )
        )
