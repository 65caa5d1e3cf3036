"""The campaign: sample tasks → roll out groups → advantages → train → sync weights → evaluate →
checkpoint.

A step is durable before the next begins: first its rollouts, then the checkpoint (which carries the
step's metrics), then the step's row. Whatever the instant of a ``kill -9``, a resumed run takes up
what is there: counting rollouts are kept, a checkpoint without its row is entered, and nothing is
done twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from conf.errors import error_text
from conf.schema import Config
from runners.campaign.drain import drained
from runners.campaign.result import metrics_rows
from runners.campaign.schedule import (
    evaluation_batch,
    evaluation_due,
    spare_group,
    training_batch,
)
from runners.observe.metrics import MetricsWriter
from runners.observe.progress import Progress
from runners.rollouts.context import RolloutSpec
from runners.runtime.driver import Interrupted
from runners.runtime.services import Services
from runners.store.run_store import RunStore
from runners.tasks.contract import Task
from runners.training import checkpoint
from runners.training.step_batch import Sessions, make_batch, mean, step_metrics, untrainable_groups
from runners.trajectory.graph import build_segments
from runners.trajectory.record import RolloutRecord, Segment
from runners.trajectory.routing import RoutingShape

if TYPE_CHECKING:
    from runners.training.local import LocalTrainer


class Campaign:
    """Drives one run from where its store says it is to its last step."""

    def __init__(
        self,
        config: Config,
        store: RunStore,
        services: Services,
        *,
        trainer: LocalTrainer,
        resumed: checkpoint.Checkpoint | None,
        tasks: Sequence[Task],
        routing: RoutingShape | None,
        pad: int,
        progress: Progress,
        metrics: MetricsWriter,
        draining: asyncio.Event,
    ) -> None:
        self._config = config
        self._store = store
        self._services = services
        self._trainer = trainer
        self._resumed = resumed
        self._train_tasks = [task for task in tasks if task.split == "train"]
        self._held_out_tasks = [task for task in tasks if task.split == "held_out"]
        self._progress = progress
        self._metrics = metrics
        self._draining = draining
        self._sessions = Sessions(self._chains, store.routing, routing, pad)
        self._metrics_lag = False
        self._pool = services.make_pool(
            config.rollout, draining=draining, on_done=self._rollout_done
        )

    async def run(self) -> None:
        """Run to the last step; raises Interrupted when asked to stop."""
        done = self._enter_orphaned_step()
        self._write_metrics()
        await self._evaluate(0)
        for step in range(1, self._config.run.steps + 1):
            if step not in done:
                await self._step(step)
                self._write_metrics(step)
            if await self._evaluate(step):
                self._write_metrics()
        if self._metrics_lag:
            self._write_metrics()

    def _enter_orphaned_step(self) -> set[int]:
        """Return the finished steps, after entering one whose checkpoint is there but whose row is
        not.
        """
        done = {row.step for row in self._store.steps() if row.state == "done"}
        saved = self._resumed
        if saved is not None and saved.step not in done:
            self._store.finish_step(saved.step, saved.state()["metrics"])
            done.add(saved.step)
        return done

    async def _step(self, step: int) -> None:
        specs = training_batch(self._config, self._train_tasks, step)
        self._store.begin_step(step, [spec.task.id for spec in specs if spec.member == 0])
        self._progress.begin_phase("rollouts", len(specs))
        started = time.monotonic()
        batch = make_batch(await self._groups(step, specs), self._sessions, self._config)
        note_masked(self._store, "unbuilt", batch.unbuilt)
        rollout_s = time.monotonic() - started
        self._progress.begin_phase("training")
        trained = await asyncio.to_thread(self._trainer.step, batch.rollouts)
        note_masked(self._store, "routing_refused", self._trainer.refused)
        metrics = step_metrics(batch, rollout_s) | trained
        for record in batch.records:
            self._store.put_rollout(record)
        self._progress.begin_phase("checkpoint")
        metrics["time/step_s"] = time.monotonic() - started
        saved = await asyncio.to_thread(
            checkpoint.save,
            self._trainer,
            self._store.run_dir / "checkpoints",
            step=step,
            state={"metrics": metrics},
            keep=self._config.run.keep_checkpoints,
        )
        self._store.finish_step(step, metrics)
        drain_s = self._config.rollout.deadlines.drain_s
        async with drained(
            self._services.context.gateway, self._services.engine, deadline_s=drain_s
        ):
            await self._services.engine.update_weights(saved.path, step)
        show_step(self._progress, step, metrics)

    async def _evaluate(self, step: int) -> bool:
        """Evaluate the policy after ``step`` updates, if that is due and not done yet; returns
        whether it was.
        """
        if not evaluation_due(self._config, step) or step != self._version():
            return False  # a resumed run is past it: the weights are gone, the evaluation is stored
        if step in {row.step for row in self._store.evaluations()}:
            return False
        specs = evaluation_batch(self._config, self._held_out_tasks, step)
        self._progress.begin_phase("evaluation", len(specs))
        records = await self._rollouts(specs)
        graded = [record for record in records if record.solved is not None]
        result = {
            "solve_rate": mean([float(bool(record.solved)) for record in graded]),
            "tasks": len(specs),
            "graded": len(graded),
            "turns_mean": mean([float(record.turns) for record in graded]),
        }
        self._store.finish_evaluation(step, result)
        if result["solve_rate"] is not None:
            self._progress.evaluated(step, result["solve_rate"])
        return True

    async def _groups(self, step: int, specs: Sequence[RolloutSpec]) -> list[RolloutRecord]:
        """Run a step's groups, and spare ones for those that cannot be trained."""
        records, spares = await self._rollouts(specs), 0
        while spares < self._config.rollout.spare_groups:
            lacking = len(untrainable_groups(records, self._config)) - spares
            more = min(lacking, self._config.rollout.spare_groups - spares)
            if more <= 0:
                break
            extra = [
                spec
                for number in range(spares, spares + more)
                for spec in spare_group(self._config, self._train_tasks, step, number)
            ]
            self._progress.batch_size += len(extra)
            records += await self._rollouts(extra)
            spares += more
        return records

    async def _rollouts(self, specs: Sequence[RolloutSpec]) -> list[RolloutRecord]:
        """Run what is not in the store yet; returns one counting record per spec, in order. Raises
        Interrupted.
        """
        if self._draining.is_set():
            raise Interrupted
        kept = {
            record.rollout_id: record
            for record in self._store.rollouts(
                step=specs[0].step, split=specs[0].split, counts=True
            )
        }
        wanted = {spec.rollout_id for spec in specs}
        kept = {name: record for name, record in kept.items() if name in wanted}
        for record in kept.values():
            self._rollout_done(record)
        fresh = await self._pool.run([spec for spec in specs if spec.rollout_id not in kept])
        found = kept | {record.rollout_id: record for record in fresh}
        if len(found) < len(specs):
            raise Interrupted
        return [found[spec.rollout_id] for spec in specs]

    def _write_metrics(self, step: int | None = None) -> None:
        """Write the metrics of a step, or of all. They are a copy: the store has them, so a failure
        is an event and the next writing makes up for it.
        """
        try:
            if step is None or self._metrics_lag:
                self._metrics.rewrite(metrics_rows(self._store))
            else:
                self._metrics.write(metrics_rows(self._store, step)[0])
            self._metrics_lag = False
        except (Exception, asyncio.CancelledError) as error:  # never the end of a run
            self._metrics_lag = True
            text = f"{type(error).__name__}: {error_text(error)}"
            self._store.event("metrics_failed", {"error": text})

    def _rollout_done(self, record: RolloutRecord) -> None:
        self._progress.rollout_done(record.outcome.code, record.sampled_tokens)

    def _chains(self, session_id: str) -> list[Segment]:
        return build_segments(self._store.turns(session_id))

    def _version(self) -> int:
        """Weight version the engine serves now."""
        return max((row.step for row in self._store.steps() if row.state == "done"), default=0)


def note_masked(store: RunStore, kind: str, reasons: Mapping[str, str]) -> None:
    """Enter rollouts that are not trained though they have a grade: an event of ``kind`` each."""
    for rollout_id, reason in reasons.items():
        store.event(kind, {"rollout_id": rollout_id, "reason": reason})


def show_step(progress: Progress, step: int, metrics: dict[str, Any]) -> None:
    """Show a finished step, also one of an earlier execution of the run."""
    rates = metrics["train/reward_mean"], metrics["train/solve_rate"]
    progress.step_done(step, *rates, metrics["time/step_s"])
