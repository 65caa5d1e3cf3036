"""The training half of a step: advantages → samples → training → checkpoint → row.

It says nothing about when rollouts run. Invariant: a step's metrics are in its checkpoint before
its row is written, so that the row can be entered from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.schema import Config
from conf.sections.training import LocalTrainerConfig
from conf.task_sets import name_sets
from runners.campaigns.schedule import count_supervised
from runners.campaigns.step_metrics import step_metrics
from runners.campaigns.teaching import Teacher, add_teacher_logprobs
from runners.observe.figures import read_evaluations
from runners.observe.live import Progress
from runners.records.checkpoints import CHECKPOINTS, Checkpoint, find_best, remove_old
from runners.records.routing import RoutingShape
from runners.records.store import RunStore, measure_free_mb
from runners.system.concurrency import run_in_daemon
from runners.training.advantages import StepGroups
from runners.training.ranks import Trainer
from runners.training.step_samples import StepSamples, build_samples, load_rollout

if TYPE_CHECKING:
    from runners.training.supervised.examples import Examples


class StepTraining:
    """Trains steps, and makes them durable."""

    def __init__(
        self,
        config: Config,
        store: RunStore,
        trainer: Trainer,
        *,
        tokenizer: Path,
        examples: Examples | None,
        teacher: Teacher | None,
        routing: RoutingShape | None,
        progress: Progress,
        begin_phase: Callable[[str], None],
        saved: Callable[[int], Awaitable[None]],
    ) -> None:
        """Keep what training needs; ``saved`` is called with the number of steps of a checkpoint
        when it and its step are durable.
        """
        self._config = config
        self._store = store
        self._trainer = trainer
        self._tokenizer = tokenizer
        self._examples = examples
        self._teacher = teacher
        self._routing = routing
        self._progress = progress
        self._begin_phase = begin_phase
        self._saved = saved

    def is_supervised(self, step: int) -> bool:
        """Return whether a step trains on examples instead of rollouts."""
        return step <= count_supervised(self._config)

    async def fit(self, step: int) -> dict[str, Any]:
        """Train on the step's examples; return the metrics of a step without rollouts."""
        assert self._examples is not None
        assert isinstance(self._config.trainer, LocalTrainerConfig)
        self._store.begin_step(step, [])
        self._begin_phase("training")
        examples = self._examples.batch(step, self._config.trainer.sft.batch)
        trained: dict[str, Any] = await run_in_daemon(self._trainer.fit, examples)
        none = self._build(StepGroups(self._config), self._store)
        sets = name_sets(self._config)
        return step_metrics(none, 0.0, sets, version=step - 1) | trained

    async def train(self, step: int, groups: StepGroups, rollout_s: float) -> dict[str, Any]:
        """Train on the rollouts of a step, which took ``rollout_s``; return the metrics."""
        for (dealt, group), reason in groups.failed.items():
            self._store.event("advantage_failed", {"step": dealt, "group": group, "reason": reason})
            self._progress.add_note(f"group {group} of step {dealt} is not trained: {reason}")
        # Not on the event loop, which may serve the rollouts of the next step meanwhile.
        samples: StepSamples = await run_in_daemon(self._read, groups)
        self._begin_phase("training")
        if self._teacher is not None:
            samples = await add_teacher_logprobs(samples, self._teacher, self._config.trainer)
        note_masked(self._store, "unbuilt", samples.unbuilt)
        # A second signal must not wait for a long step, or for a loss that hangs.
        trained: dict[str, Any] = await run_in_daemon(self._trainer.step, samples.rollouts)
        note_masked(self._store, "routing_refused", self._trainer.refused)
        sessions = {record.rollout_id: record.session_id for record in samples.records}
        self._store.put_agreements((sessions[a.rollout_id], a) for a in self._trainer.agreements)
        for reason in self._trainer.failed_updates:
            self._store.event("update_failed", {"step": step, "reason": reason})
            self._progress.add_note(f"an update of step {step} is left out: {reason}")
        sets = name_sets(self._config)
        metrics = step_metrics(samples, rollout_s, sets, version=step - 1) | trained
        for record in samples.records:
            self._store.put_rollout(record)
        return metrics

    async def save(self, step: int, metrics: dict[str, Any]) -> Checkpoint:
        """Write the checkpoint of a trained step, then its row; return the checkpoint."""
        self._begin_phase("checkpoint")
        metrics["disk/free_mb"] = measure_free_mb(self._store.run_dir)
        root = self._store.run_dir / CHECKPOINTS
        saved = await asyncio.to_thread(
            self._trainer.save,
            root,
            step=step,
            state={"metrics": metrics},
            run_id=self._store.run_id,
            tokenizer=self._tokenizer,
        )
        kept = self._config.run.keep_checkpoints
        await asyncio.to_thread(remove_old, root, keep=kept, best=self.find_best())
        self._store.finish_step(step, metrics)
        await self._saved(saved.step)
        return saved

    def find_best(self) -> Checkpoint | None:
        """Return the checkpoint with the best evaluation, if there is one."""
        root = self._store.run_dir / CHECKPOINTS
        return find_best(root, dict(read_evaluations(self._store)))

    def _read(self, groups: StepGroups) -> StepSamples:
        """Return the samples of a step, read over a connection of the calling thread."""
        with RunStore.open(self._store.run_dir, read_only=True) as store:
            return self._build(groups, store)

    def _build(self, groups: StepGroups, store: RunStore) -> StepSamples:
        return build_samples(groups, partial(load_rollout, store, self._routing), self._config)


def note_masked(store: RunStore, kind: str, reasons: Mapping[str, str]) -> None:
    """Store an event of ``kind`` for each rollout that has a grade and is not trained."""
    for rollout_id, reason in reasons.items():
        store.event(kind, {"rollout_id": rollout_id, "reason": reason})
