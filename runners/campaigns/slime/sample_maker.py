"""Make slime's samples of stored rollouts, whatever is wrong with one of them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from conf.errors import error_text
from conf.schema import Config
from conf.sections.training import RoutingRolloutConfig
from runners.campaigns.slime.job_recorder import JobRecorder
from runners.campaigns.slime.placeholder import read_pad_token
from runners.campaigns.slime.rewards import KEY
from runners.campaigns.slime.routing_check import RoutingCheck
from runners.campaigns.slime.samples import SampleConfig, placeholder, to_slime_samples
from runners.records.record import RolloutRecord
from runners.records.routing import RoutingError
from runners.records.store import RunStore
from runners.records.tokenizer import load_tokenizer
from runners.services.policy import find_captured_shape
from runners.training.step_samples import load_rollout

ROUTING_REFUSED = "routing_refused"
"""Event of a rollout with a sample whose routing is impossible."""

_log = logging.getLogger(__name__)


def make_sample_config(config: Config, tokenizer: Path, weights: Path) -> SampleConfig:
    """Return how the rollouts of a job become samples; raises ConfigError."""
    replay = config.routing_replay
    return SampleConfig(
        fanout=config.fanout,
        train_unfinished=config.trainer.train_unfinished,
        decode=load_tokenizer(tokenizer).decode,
        pad=read_pad_token(weights),
        shape=find_captured_shape(config, weights),
        stops_at_bad_routing=isinstance(replay, RoutingRolloutConfig) and replay.on_fault == "stop",
    )


class SampleMaker:
    """Makes the samples of one batch after the other."""

    def __init__(self, config: SampleConfig, store: RunStore, recorder: JobRecorder) -> None:
        self._config = config
        self._store = store
        self._recorder = recorder
        self.routing = RoutingCheck()
        """Of the batch whose samples were made last."""

    def begin_batch(self) -> None:
        """Forget what the routing of the batch before was."""
        self.routing = RoutingCheck()

    async def make(self, base: Any, record: RolloutRecord, *, is_trained: bool) -> list[Any]:
        """Return the samples of a training rollout; one without weight if it cannot be built."""
        samples = await self.convert(base, record, evaluation=False)
        for sample in samples:
            fault = sample.metadata[KEY].get("routing", {}).get("fault")
            if fault is not None:
                found = {"rollout_id": record.rollout_id, "reason": fault}
                self._store.event(ROUTING_REFUSED, found)
            sample.remove_sample = sample.remove_sample or not is_trained
        return samples

    async def convert(self, base: Any, record: RolloutRecord, *, evaluation: bool) -> list[Any]:
        """Return the samples of a rollout, or its placeholder if they cannot be built."""
        config = self._config
        try:
            stored = load_rollout(self._store, config.shape, record)
            if not evaluation:
                self._recorder.keep_loaded(stored)
            # On a thread: the routing of a long rollout has 10⁸ ids, and other rollouts go on.
            samples: list[Any] = await asyncio.to_thread(
                to_slime_samples, base, stored, config, evaluation=evaluation
            )
            if not evaluation:
                self.routing.add(samples)
        except Exception as error:  # a failed rollout is data
            if isinstance(error, RoutingError):
                if config.stops_at_bad_routing:
                    raise
                self.routing.refused += not evaluation
            text = f"{type(error).__name__}: {error_text(error)}"
            _log.error("rollout %s has no samples: %s", record.rollout_id, text)
            self._store.event("unbuilt", {"rollout_id": record.rollout_id, "error": text})
            samples = [placeholder(base, record, config)]
        return samples
