"""What a slime job leaves in its run directory while it goes on: steps, evaluations, metrics, a
heartbeat, and how it stands as a file that every machine can read.

A step counts as done when its rollouts are handed to the trainer, which does not tell more; a job
that goes on from an older checkpoint does later steps again, and their first ends are taken back.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError
from conf.schema import Config
from runners.campaign.result import metrics_rows
from runners.observe.metrics import MetricsWriter
from runners.observe.status import status_of
from runners.rollouts.context import RolloutSpec
from runners.store.published import STATUS_FILE, publish
from runners.store.run_state import State
from runners.store.run_store import RunStore
from runners.training.step_batch import Sessions, make_batch, mean, step_metrics
from runners.trajectory.graph import build_segments
from runners.trajectory.record import RolloutRecord, Segment

HEARTBEAT_S = 10.0
GATEWAY_FILE = "gateway.json"

_log = logging.getLogger(__name__)


class Journal:
    """Keeps the journal of one execution of a job; used on the event loop that has the store."""

    def __init__(self, config: Config, store: RunStore) -> None:
        self._config = config
        self._store = store
        # slime writes events of its own into `tensorboard`.
        self._metrics = MetricsWriter(store.run_dir, tensorboard=False)
        self._started = time.monotonic()
        self._before_s = store.state().spent_s
        self._groups: dict[int, dict[int, str]] = {}
        """Tasks of the steps that have begun here, by group."""
        self._began: dict[int, float] = {}
        self._first: int | None = None
        """The first step of this execution; the one after the checkpoint that slime has loaded."""
        self._kept: dict[str, RolloutRecord] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def begin(self) -> None:
        """Enter that this process drives the run; raises StoreError if another one does."""
        self._store.set_state(State.RUNNING, wall_s=self._before_s)
        self._store.replace_config(self._config.model_dump(mode="json"))
        self._metrics.rewrite(metrics_rows(self._store))
        self._publish()

    async def beat(self) -> None:
        """Say again and again that the job lives."""
        while True:
            try:
                self._store.heartbeat()
                self._publish()
            except AgentrlError as error:  # a rollout that cannot be stored says it louder
                _log.error("no heartbeat: %s", error)
            await asyncio.sleep(HEARTBEAT_S)

    @property
    def step(self) -> int:
        """The newest step whose rollouts have begun here; 0 before the first."""
        return max(self._began, default=0)

    def rollout_begins(self, spec: RolloutSpec) -> RolloutRecord | None:
        """Enter a training rollout; return its record if an earlier execution has finished it.

        Only those of the first step are taken as they are: the weights that sampled them are those
        of the checkpoint. What came after was sampled from weights that are lost.
        """
        step = spec.step
        if self._first is None:
            self._first = step
            self._store.rewind(step - 1)
            self._metrics.rewrite(metrics_rows(self._store))
            earlier = self._store.rollouts(step=step, split="train", counts=True)
            self._kept = {each.rollout_id: each for each in earlier if each.reward is not None}
        if step not in self._began:
            self._began[step], self._groups[step] = time.monotonic(), {}
        groups = self._groups[step]
        if spec.group not in groups and not self._finished(step):
            groups[spec.group] = spec.task.id
            self._store.begin_step(step, [groups[group] for group in sorted(groups)])
        kept = self._kept.pop(spec.rollout_id, None)
        return kept if kept is not None and kept.task_id == spec.task.id else None

    def handed_over(self, steps: Sequence[int]) -> None:
        """Finish the steps whose samples the trainer has; their metrics are made aside."""
        for step in steps:
            if step in self._began and not self._finished(step):
                ended = asyncio.create_task(self._finish(step), name=f"agentrl-step-{step}")
                self._ending.add(ended)
                ended.add_done_callback(self._ending.discard)

    async def settled(self) -> None:
        """Return when every step that was handed over is entered."""
        await asyncio.gather(*self._ending)

    def evaluated(self, step: int, records: Sequence[RolloutRecord]) -> None:
        """Enter the evaluation of the policy after ``step`` steps, once."""
        graded = [record for record in records if record.solved is not None]
        result = {
            "solve_rate": mean([float(bool(record.solved)) for record in graded]),
            "tasks": len(records),
            "graded": len(graded),
            "turns_mean": mean([float(record.turns) for record in graded]),
        }
        if step not in {row.step for row in self._store.evaluations()}:
            self._store.finish_evaluation(step, result)
        self._metrics.rewrite(metrics_rows(self._store))
        self._publish()

    def close(self) -> None:
        """Enter that this process is gone; what is unfinished stays so."""
        if self._closed:
            return
        self._closed = True
        done = {row.step for row in self._store.steps() if row.state == "done"}
        over = len(done) >= self._config.run.steps
        self._store.set_state(
            State.DONE if over else State.INTERRUPTED,
            message="" if over else "slime's process has ended",
            wall_s=self._before_s + time.monotonic() - self._started,
        )
        self._publish()

    async def _finish(self, step: int) -> None:
        try:
            rollout_s = time.monotonic() - self._began[step]
            records = self._store.rollouts(step=step, split="train", counts=True)
            config, run_dir = self._config, self._store.run_dir
            batch, metrics = await asyncio.to_thread(_step_of, config, run_dir, records, rollout_s)
            for record in batch:
                self._store.put_rollout(record)
            self._store.finish_step(step, metrics)
            self._metrics.rewrite(metrics_rows(self._store))
            self._publish()
        except AgentrlError as error:  # training has the samples; only our view of it is poorer
            _log.error("step %d has no metrics: %s", step, error)

    def _finished(self, step: int) -> bool:
        return any(row.step == step and row.state == "done" for row in self._store.steps())

    def _publish(self) -> None:
        publish(self._store.run_dir, STATUS_FILE, status_of(self._store).to_dict())


def _step_of(
    config: Config, run_dir: Path, records: Sequence[RolloutRecord], rollout_s: float
) -> tuple[list[RolloutRecord], dict[str, Any]]:
    """Return a step's records with their advantages, and its metrics; reads every turn."""
    with RunStore.open(run_dir, read_only=True) as store:

        def chains(session_id: str) -> list[Segment]:
            return build_segments(store.turns(session_id))

        batch = make_batch(records, Sessions(chains), config)
    return batch.records, step_metrics(batch, rollout_s)


def publish_gateway(run_dir: Path, url: str, public_url: str | None) -> None:
    """Say where the job's gateway is; its key stays in memory. Raises StoreError."""
    document: Mapping[str, Any] = {
        "url": url,
        "public_url": public_url,
        "node": socket.gethostname(),
        "since": time.time(),
    }
    publish(run_dir, GATEWAY_FILE, document)
