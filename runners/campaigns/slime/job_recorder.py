"""Record the progress of a slime job in its run directory: steps, evaluations, metrics, heartbeat.

The status is published as a file that every machine can read. A step counts as done when its
rollouts are handed to slime, which reports no more than that: with ``run.overlap`` while it trains
the step before. A job that continues from an older checkpoint runs later steps again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError
from conf.schema import Config
from conf.task_sets import name_sets
from runners.campaigns.routing_retention import delete_old_routing
from runners.campaigns.slime.batches import GatheredBatch
from runners.campaigns.slime.checkpoints import find_newest, remove_old_checkpoints
from runners.campaigns.slime.megatron.step_figures import drop_figures, move_figures
from runners.campaigns.slime.resumption import rewind_job
from runners.campaigns.step_metrics import step_metrics
from runners.observe.adviser import MetricLines
from runners.observe.figures import MetricsWriter, read_evaluations
from runners.observe.live import read_store_status, summarize_evaluation, write_document
from runners.records.checkpoints import CHECKPOINTS
from runners.records.record import RolloutRecord
from runners.records.store import STATUS_FILE, RunStore, State, measure_free_mb
from runners.training.advantages import StepGroups
from runners.training.step_samples import StoredRollout, build_samples, load_rollout

HEARTBEAT_S = 10.0
GATEWAY_FILE = "gateway.json"

_log = logging.getLogger(__name__)


class JobRecorder:
    """Records one execution of a job; used on the event loop that owns the store."""

    def __init__(self, config: Config, store: RunStore) -> None:
        self._config = config
        self._store = store
        # No TensorBoard events here: slime writes its own into the same folder.
        self._metrics = MetricsWriter(store.run_dir, tensorboard=False)
        self._lines: MetricLines
        """Set by ``start``."""
        self._started = time.monotonic()
        self._before_s = store.state().spent_s
        self._began_at: dict[int, float] = {}
        self._loaded: dict[str, StoredRollout] = {}
        """Segments of the rollouts of the batch that was gathered last, by session."""
        self._finishing: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self, done: int) -> None:
        """Record that this process drives the run, from the checkpoint after ``done`` steps; raises
        StoreError if another one drives it.
        """
        self._store.set_state(State.RUNNING, wall_s=self._before_s)
        rewind_job(self._config, self._store, done)
        drop_figures(self._store.run_dir, done)
        self._store.replace_config(self._config.model_dump(mode="json"))
        self._lines = MetricLines(self._store)  # of the steps that are left
        self._metrics.rewrite(self._lines.read())
        self._publish()

    async def send_heartbeats(self) -> None:
        """Record every few seconds that the job is alive; runs until it is cancelled."""
        while True:
            try:
                self._store.heartbeat()
                if move_figures(self._store) is not None:
                    self._write_metrics()
                self._publish()
            except AgentrlError as error:  # a rollout that cannot be stored ends the job
                _log.error("no heartbeat: %s", error)
            await asyncio.sleep(HEARTBEAT_S)

    @property
    def newest_step(self) -> int:
        """The newest step that slime has asked for here; 0 before the first."""
        return max(self._began_at, default=0)

    def begin_step(self, step: int) -> None:
        """Record that slime asks for the batch of a step."""
        self._began_at[step] = time.monotonic()
        self._in_background(self._remove_old(), f"agentrl-remove-old-{step}")

    def keep_loaded(self, stored: StoredRollout) -> None:
        """Keep a training rollout's segments for the metrics of the step that is gathered: its
        turns are read once.

        Turns and routing, which the metrics do not need, are dropped; the rest costs a fraction of
        slime's own samples, which live as long.
        """
        segments = replace(stored, turns=(), routing=lambda segment: None)
        self._loaded[stored.record.session_id] = segments

    def finish_step(self, batch: GatheredBatch, figures: Mapping[str, Any]) -> None:
        """Finish the step of a batch that slime has; its metrics, with ``figures``, follow in the
        background.
        """
        if not self._finished(batch.step):
            self._in_background(self._finish(batch, figures), f"agentrl-step-{batch.step}")

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._finishing.add(task)  # asyncio itself keeps only a weak reference
        task.add_done_callback(self._finishing.discard)

    async def _remove_old(self) -> None:
        """Delete checkpoints and routing that are not to be kept: slime has saved the steps before
        this one.
        """
        root, keep = self._store.run_dir / CHECKPOINTS, self._config.run.keep_checkpoints
        rates = dict(read_evaluations(self._store))
        await asyncio.to_thread(remove_old_checkpoints, root, keep=keep, rates=rates)
        saved = await asyncio.to_thread(find_newest, root)
        try:
            await delete_old_routing(self._config, self._store, saved)
        except AgentrlError as error:  # it is tried again with the next step
            _log.error("no routing is deleted: %s", error)

    async def wait_until_finished(self) -> None:
        """Wait until every step that was handed over is recorded."""
        await asyncio.gather(*self._finishing)

    def record_evaluation(self, step: int, records: Sequence[RolloutRecord]) -> None:
        """Record the evaluation of the policy after ``step`` steps, once."""
        if step not in {row.step for row in self._store.evaluations()}:
            self._store.finish_evaluation(step, summarize_evaluation(records))
        self._write_metrics()
        self._publish()

    def close(self) -> None:
        """Record that this process ends; unfinished steps stay unfinished."""
        if self._closed:
            return
        self._closed = True
        done = self._store.finished_steps()
        over = len(done) >= self._config.run.steps
        self._store.set_state(
            State.DONE if over else State.INTERRUPTED,
            message="" if over else "slime's process has ended",
            wall_s=self._before_s + time.monotonic() - self._started,
        )
        self._publish()

    async def _finish(self, batch: GatheredBatch, figures: Mapping[str, Any]) -> None:
        step = batch.step
        try:
            rollout_s = time.monotonic() - self._began_at[step]
            loaded, self._loaded = self._loaded, {}
            trained, metrics = await asyncio.to_thread(
                _summarize_step, self._config, self._store.run_dir, batch, loaded, rollout_s
            )
            for record in trained:
                self._store.put_rollout(record)
            free = {"disk/free_mb": measure_free_mb(self._store.run_dir)}
            self._store.finish_step(step, metrics | free | dict(figures))
            self._write_metrics()
            self._publish()
        except AgentrlError as error:  # training goes on: only its metrics are missing
            _log.error("step %d has no metrics: %s", step, error)

    def _finished(self, step: int) -> bool:
        return step in self._store.finished_steps()

    def _write_metrics(self) -> None:
        """Write what is new of the steps' metrics, or all if somebody has changed the file."""
        if not self._metrics.replace_tail(self._lines.read_tail()):
            self._metrics.rewrite(self._lines.read())

    def _publish(self) -> None:
        status = read_store_status(self._store, alarms=self._lines.latest_alarms())
        write_document(self._store.run_dir / STATUS_FILE, status.to_dict())


def _summarize_step(
    config: Config,
    run_dir: Path,
    batch: GatheredBatch,
    loaded: Mapping[str, StoredRollout],
    rollout_s: float,
) -> tuple[list[RolloutRecord], dict[str, Any]]:
    """Return a step's records with their advantages, and its metrics.

    Reads the turns of rollouts that are not ``loaded``. Called on a thread: it opens a separate
    connection, since one of SQLite belongs to its thread.
    """
    with RunStore.open(run_dir, read_only=True) as store:

        def load(record: RolloutRecord) -> StoredRollout:
            known = loaded.get(record.session_id)
            return load_rollout(store, None, record) if known is None else known

        samples = build_samples(StepGroups(config, batch.records), load, config)
    sets = name_sets(config)
    # Trained are the weights that the steps before this one made.
    return samples.records, step_metrics(samples, rollout_s, sets, version=batch.step - 1)


def publish_gateway(run_dir: Path, urls: Sequence[str], public_url: str | None) -> None:
    """Publish the addresses of the job's gateway, without its key. Raises StoreError."""
    document: Mapping[str, Any] = {
        "url": urls[0],
        "urls": list(urls),
        "public_url": public_url,
        "node": socket.gethostname(),
        "since": time.time(),
    }
    write_document(run_dir / GATEWAY_FILE, document)
