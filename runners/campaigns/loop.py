"""The campaign loop: tasks → rollouts → advantages → training → checkpoint → weights → evaluation.

A step is durable before the next begins: first its rollouts, then the checkpoint (which carries the
step's metrics), then the step's row. After a ``kill -9`` at any instant a resumed run continues
with what is there: final rollouts are kept, a checkpoint without its row is entered, and nothing is
done twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.errors import error_text
from conf.schema import Config
from conf.sections.engine import EmbeddedEngineConfig
from runners.campaigns.drain import pause_turns
from runners.campaigns.group_runner import GroupRunner, note_final
from runners.campaigns.overlap.producer import GroupProducer
from runners.campaigns.overlap.recorded import RecordedSchedule
from runners.campaigns.overlap.run_schedule import RunSchedule
from runners.campaigns.overlap.steps import OverlappedSteps
from runners.campaigns.routing_retention import delete_old_routing
from runners.campaigns.sampler import StepSampler
from runners.campaigns.schedule import count_supervised, evaluation_batch, evaluation_due
from runners.campaigns.step_training import StepTraining
from runners.campaigns.teaching import Teacher
from runners.engines.client import HttpEngine
from runners.observe.adviser import MetricLines
from runners.observe.figures import MetricsWriter
from runners.observe.live import Progress, read_overlapped, summarize_evaluation
from runners.observe.sinks import Ending, SinkFeed, TrackerFeed
from runners.records.checkpoints import CHECKPOINTS, Checkpoint, link_best, remove_old
from runners.records.routing import RoutingShape
from runners.records.store import RunStore
from runners.services.driver import Interrupted
from runners.services.services import Services
from runners.system.plugins import PluginFailedError
from runners.tasks.contract import Task
from runners.training.ranks import Trainer

if TYPE_CHECKING:
    from runners.training.supervised.examples import Examples


class Campaign:
    """Drives one run from the state in its store to its last step."""

    def __init__(
        self,
        config: Config,
        store: RunStore,
        services: Services,
        *,
        trainer: Trainer,
        tokenizer: Path,
        resumed: Checkpoint | None,
        served: int,
        recorded: RecordedSchedule | None,
        tasks: Sequence[Task],
        examples: Examples | None,
        teacher: Teacher | None,
        routing: RoutingShape | None,
        progress: Progress,
        metrics: MetricsWriter,
        draining: asyncio.Event,
    ) -> None:
        """Prepare to run. ``resumed``: the newest checkpoint; ``served``: version of the engine's
        weights; ``recorded``: the schedule that is replayed.
        """
        self._config = config
        self._store = store
        self._services = services
        self._resumed = resumed
        self._served = served
        self._recorded = recorded
        train_tasks = [task for task in tasks if task.split == "train"]
        self._sampler = StepSampler(config, store, train_tasks, self._note_sampler_failure)
        self._held_out_tasks = [task for task in tasks if task.split == "held_out"]
        self._progress = progress
        self._metrics = metrics
        self._draining = draining
        self._training = StepTraining(
            config,
            store,
            trainer,
            tokenizer=tokenizer,
            examples=examples,
            teacher=teacher,
            routing=routing,
            progress=progress,
            begin_phase=self._begin_phase,
            saved=partial(delete_old_routing, config, store),
        )
        self._overlapping = False
        self._sinks = SinkFeed(config.observe.sinks, self._note_sink_failure)
        self._trackers = TrackerFeed(config, store, self._note_sink_text)
        self._lines = MetricLines(store)
        self._metrics_outdated = False
        """True if a write of the metrics file has failed since it was complete."""
        on_done = partial(note_final, progress)
        pool = services.make_pool(config.rollout, draining=draining, on_done=on_done)
        self._runner = GroupRunner(
            config, store, pool, self._sampler, progress=progress, draining=draining
        )

    async def run(self) -> None:
        """Run to the last step; raises Interrupted when asked to stop."""
        ending = Ending.FAILED
        try:
            await self._run_steps()
            ending = Ending.FINISHED
        except (Interrupted, asyncio.CancelledError):
            # without a signal: a service that is gone has ended the run
            if self._draining.is_set():
                ending = Ending.STOPPED
            raise
        finally:
            await self._sinks.close()
            await self._trackers.close(ending)

    async def _run_steps(self) -> None:
        done = self._enter_unrecorded_step()
        self._keep_best()  # a killed driver may have recorded an evaluation and no more
        self._write_metrics()
        self._trackers.wake()
        await self._evaluate(0)
        in_turns = self._config.run.steps
        if self._config.run.overlap != "none":
            in_turns = count_supervised(self._config)
        for step in range(1, in_turns + 1):
            if step not in done:
                await self._step(step)
                self._publish(step)
            await self._evaluate(step)
        if in_turns < self._config.run.steps:
            await self._run_overlapped()
        if self._metrics_outdated:
            self._write_metrics()

    async def _run_overlapped(self) -> None:
        """Run the steps whose rollouts and training overlap."""
        schedule = RunSchedule(self._config, self._store, self._recorded)
        steps = OverlappedSteps(
            self._config,
            self._store,
            schedule=schedule,
            producer=GroupProducer(
                self._config, schedule, self._sampler, self._runner, self._draining
            ),
            training=self._training,
            served=self._served,
            load=self._load_weights,
            show_rollouts=self._show_rollouts,
            after_step=self._note_overlapped,
            evaluate=self._evaluate,
            count_planned=self._count_planned,
        )
        self._overlapping = True
        await steps.run(self._resumed)

    def _show_rollouts(self) -> None:
        """Show the rollouts of the groups that are admitted and not trained yet."""
        under_way = read_overlapped(self._store)
        if under_way is not None:
            self._progress.begin_phase("rollouts", under_way.size)
            self._progress.batch_done = under_way.done

    async def _count_planned(self) -> dict[int, int]:
        """Return how many tokens of planned requests the engine has sampled, by version."""
        engine = self._services.engine
        assert isinstance(engine, HttpEngine), "by the rules of the configuration"
        return await engine.count_planned_tokens()

    def _note_overlapped(self, step: int, metrics: dict[str, Any]) -> None:
        self._progress.add_step_metrics(step, metrics)
        self._publish(step)

    def _publish(self, step: int) -> None:
        """Give the metrics of a step to their file and the sinks."""
        self._write_metrics(step)
        self._give_to_sinks(step)
        self._progress.alarms = self._lines.latest_alarms()

    def _give_to_sinks(self, step: int) -> None:
        self._sinks.add(self._lines.read_step(step))
        self._trackers.wake()

    def _begin_phase(self, phase: str) -> None:
        """Show a phase, but the rollouts as long as they go on beside it."""
        if not self._overlapping:
            self._progress.begin_phase(phase)

    def _enter_unrecorded_step(self) -> set[int]:
        """Return the finished steps; first enter the one whose checkpoint was written just before
        the process was killed.
        """
        done = self._store.finished_steps()
        saved = self._resumed
        if saved is not None and saved.step not in done:
            self._store.finish_step(saved.step, saved.state()["metrics"])
            done.add(saved.step)
        return done

    async def _step(self, step: int) -> None:
        """Train one step, on rollouts or on examples, and make it durable."""
        started = time.monotonic()
        if self._draining.is_set():
            raise Interrupted
        if self._training.is_supervised(step):
            metrics = await self._training.fit(step)
        else:
            metrics = await self._train(step)
        metrics["time/step_s"] = time.monotonic() - started
        saved = await self._training.save(step, metrics)
        await self._load_weights(saved)
        self._progress.add_step_metrics(step, metrics)

    async def _load_weights(self, saved: Checkpoint) -> None:
        """Load weights into the engine; in ``stream`` turns in flight go on with them."""
        engine, gateway = self._services.engine, self._services.context.gateway
        keep = self._config.run.overlap == "stream" and self._overlapping
        if keep and isinstance(self._config.engine, EmbeddedEngineConfig):
            assert isinstance(engine, HttpEngine)
            await engine.switch_weights(saved.path, saved.step)
            return
        drain_s = 0.0 if keep else self._config.rollout.deadlines.drain_s
        async with pause_turns(gateway, engine, deadline_s=drain_s, keep=keep):
            await engine.update_weights(saved.path, saved.step)

    async def _train(self, step: int) -> dict[str, Any]:
        """Run the step's rollouts and train on them; return the metrics."""
        specs = await self._sampler.batch(step)
        self._store.begin_step(step, [spec.task.id for spec in specs if spec.member == 0])
        self._progress.begin_phase("rollouts", len(specs))
        started = time.monotonic()
        groups = await self._runner.run_step(step, specs)
        return await self._training.train(step, groups, time.monotonic() - started)

    async def _evaluate(self, step: int) -> None:
        """Evaluate the policy after ``step`` steps if that is due and not done yet."""
        if not evaluation_due(self._config, step) or step != self._version():
            return  # a resumed run is past it: those weights are gone
        if step in {row.step for row in self._store.evaluations()}:
            return
        specs = evaluation_batch(self._config, self._held_out_tasks, step)
        if not self._overlapping:
            self._progress.begin_phase("evaluation", len(specs))
        records = await self._runner.run_batch(specs)
        result = summarize_evaluation(records)
        self._store.finish_evaluation(step, result)
        self._keep_best()
        if result["solve_rate"] is not None:
            self._progress.add_evaluation_result(step, result)
        if step:
            self._write_metrics()
            self._give_to_sinks(step)

    def _keep_best(self) -> None:
        """Name the best checkpoint, then delete those that are neither best nor among the newest.

        In this order, and before a step deletes anything: the link leads to a checkpoint at any
        instant. It is a copy of what the store says, so a failure ends nothing.
        """
        best, root = self._training.find_best(), self._store.run_dir / CHECKPOINTS
        if best is None:
            return
        with suppress(OSError):
            link_best(root, best)
            remove_old(root, keep=self._config.run.keep_checkpoints, best=best)

    def _write_metrics(self, step: int | None = None) -> None:
        """Write the metrics of a step, or of all; a failure is an event, never the end of a run.

        The file is a copy of what the store holds, so the next write can make up for a failed one.
        """
        try:
            if step is None or self._metrics_outdated:
                self._metrics.rewrite(self._lines.read())
            else:
                self._metrics.write(self._lines.read_step(step))
            self._metrics_outdated = False
        except (Exception, asyncio.CancelledError) as error:
            self._metrics_outdated = True
            text = f"{type(error).__name__}: {error_text(error)}"
            self._store.event("metrics_failed", {"error": text})

    def _note_sampler_failure(self, step: int, error: PluginFailedError) -> None:
        self._store.event("sampler_failed", {"step": step, "reason": str(error)})
        self._progress.add_note(f"step {step} has the tasks of run.sampler=epoch: {error}")

    def _note_sink_failure(self, error: PluginFailedError) -> None:
        self._note_sink_text(str(error))

    def _note_sink_text(self, text: str) -> None:
        self._store.event("sink_failed", {"error": text})
        self._progress.add_note(text)

    def _version(self) -> int:
        """Return the weight version that the engine serves now."""
        return max(self._store.finished_steps(), default=0)
