"""The local trainer: GRPO in plain torch on one CPU or one GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conf.errors import AgentrlError
from conf.sections.training import LocalTrainerConfig, RoutingOffConfig, RoutingReplayConfig
from runners.training.losses import (
    PolicyLoss,
    clipped_policy_loss,
    corrects,
    importance_weights,
)
from runners.training.micro_batches import (
    MicroBatch,
    Rollout,
    deal_rollouts,
    micro_batches,
    token_weights,
)
from runners.training.mismatch import Mismatch
from runners.training.prefix import Around, hidden_states, plain
from runners.training.routing.shape import routing_shape
from runners.training.routing.step import ReplayedStep
from runners.training.sample import Sample
from runners.training.totals import StepTotals
from runners.trajectory.routing import Routing, RoutingError

NATIVE = RoutingOffConfig(kind="off")


class TrainingError(AgentrlError):
    """Training cannot go on: the loss or a gradient is not finite, or the weights do not fit."""


class LocalTrainer:
    """Holds policy and optimizer; mutated only by ``step`` and ``restore``, from one thread at a
    time.
    """

    def __init__(
        self,
        config: LocalTrainerConfig,
        *,
        weights: Path,
        temperature: float,
        seed: int,
        routing: RoutingReplayConfig = NATIVE,
    ) -> None:
        """Load the policy from a directory of safetensors; raises TrainingError if it cannot be
        loaded, RoutingError if its routing cannot be replayed.
        """
        self.config = config
        self.temperature = temperature
        self.device = _device(config.device)
        if config.threads:
            torch.set_num_threads(config.threads)
        self.model = load_policy(weights).to(self.device)
        self.model.train()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay,
            foreach=True,
        )  # fmt: skip
        self.generator = torch.Generator().manual_seed(seed)
        self._steps = 0
        self.replay: ReplayedStep | None = None
        if not isinstance(routing, RoutingOffConfig):
            shape = routing_shape(weights)
            if shape is None:
                raise RoutingError(
                    f"{weights} is a dense policy: it has no routing; set routing_replay=off"
                )
            self.replay = ReplayedStep(self.model, routing, shape)

    def step(self, rollouts: Sequence[Rollout]) -> dict[str, Any]:
        """Train on the samples of one campaign step's rollouts and return its metrics.

        Samples whose advantage is exactly 0 stay in the averages but are not run through the model:
        without a KL term their gradient is exactly 0. Raises TrainingError and RoutingError.
        """
        started = time.perf_counter()
        self._steps += 1
        totals = StepTotals()
        rollouts = self._prepared(rollouts, totals)
        for _ in range(self.config.epochs):
            for part in deal_rollouts(rollouts, self.config.minibatches, self.generator):
                self._update(part, totals)
        return totals.metrics(time.perf_counter() - started) | self._replay_figures(totals)

    @property
    def refused(self) -> Mapping[str, str]:
        """Rollouts of the last step that were masked since their routing could not be true, and
        what was wrong with it: layer and token.
        """
        return {} if self.replay is None else self.replay.refused

    def _prepared(self, rollouts: Sequence[Rollout], totals: StepTotals) -> Sequence[Rollout]:
        """Return the samples checked, and with what training itself says before its first update,
        where the configuration needs that.
        """
        samples = [sample for rollout in rollouts for sample in rollout]
        if self.replay is not None:
            samples = self.replay.begin(samples)
        carrying = [index for index, sample in enumerate(samples) if _carries(sample)]
        several = self.config.minibatches * self.config.epochs > 1
        records = self.replay is not None and self.replay.records
        if records or (several and corrects(self.config.correction)):
            for index, sample in zip(
                carrying, self._observed([samples[index] for index in carrying]), strict=True
            ):
                samples[index] = sample
        if self.replay is not None and self.replay.shadow_due(self._steps):
            self._shadow([samples[index] for index in carrying], totals)
        left = iter(samples)
        return [[next(left) for _ in rollout] for rollout in rollouts]

    @torch.no_grad()
    def _observed(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples with training's own logprobs and, if it is recorded, routing."""
        observed = list(samples)
        for batch in self._batches(samples):
            around: Around = plain
            routing: dict[int, Routing] = {}
            with ExitStack() as exits:
                if self.replay is not None and self.replay.records:
                    around, routing = exits.enter_context(self.replay.recording(batch))
                elif self.replay is not None:
                    around = exits.enter_context(self.replay.micro_batch(batch))
                logprobs = self._logprobs(batch, around).cpu().numpy()
            for row, index in enumerate(batch.samples):
                mask = samples[index].loss_mask
                old = np.zeros(len(mask), np.float32)
                old[mask] = logprobs[(batch.rows == row).cpu().numpy()]
                observed[index] = replace(
                    samples[index],
                    old_logprobs=old,
                    routing=routing.get(index, samples[index].routing),
                )
        return observed

    @torch.no_grad()
    def _shadow(self, samples: Sequence[Sample], totals: StepTotals) -> None:
        """Measure the mismatch that there would be without replay."""
        totals.native = Mismatch()
        for batch in self._batches(samples):
            totals.native.add(self._logprobs(batch), batch.rollout_logprobs)

    def _update(self, rollouts: Sequence[Rollout], totals: StepTotals) -> None:
        """One optimizer update on one minibatch."""
        weights = token_weights(rollouts)
        samples = [sample for rollout in rollouts for sample in rollout]
        carrying = [index for index, sample in enumerate(samples) if _carries(sample)]
        if not carrying:
            return
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for batch in self._batches(
            [samples[index] for index in carrying], [weights[index] for index in carrying]
        ):
            with ExitStack() as exits:
                around: Around = plain
                if self.replay is not None:
                    around = exits.enter_context(self.replay.micro_batch(batch))
                part = self._loss(batch, self._logprobs(batch, around), totals)
                part.loss.backward()  # type: ignore[no-untyped-call]
            loss += part.loss.item()
        if self.replay is not None:
            self.replay.note_gradients()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip).item()
        if not (abs(loss) < float("inf") and norm < float("inf")):
            raise TrainingError(
                f"the update is not finite (loss {loss}, gradient norm {norm}): "
                "lower trainer.learning_rate"
            )
        self.optimizer.step()
        totals.updated(loss, norm)

    def _loss(self, batch: MicroBatch, logprobs: Tensor, totals: StepTotals) -> PolicyLoss:
        """Return a micro-batch's loss; without a correction, the rollout's logprobs are the old
        ones.
        """
        old, weights = batch.rollout_logprobs, batch.weights
        if totals.updates == 0:  # before the first update both sides have the same weights
            totals.mismatch.add(logprobs, batch.rollout_logprobs)
        if corrects(self.config.correction):
            old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
            corrected = importance_weights(
                old, batch.rollout_logprobs, batch.rows, self.config.correction
            )
            totals.corrected(corrected)
            weights = weights * corrected.weights
        part = clipped_policy_loss(
            logprobs, old, batch.advantages, weights,
            low=self.config.clip_low, high=self.config.clip_high,
        )  # fmt: skip
        totals.add(part, len(batch.targets))
        return part

    def _batches(
        self, samples: Sequence[Sample], weights: Sequence[float] | None = None
    ) -> Iterator[MicroBatch]:
        return micro_batches(
            samples,
            weights or [0.0] * len(samples),
            tokens_per_microbatch=self.config.tokens_per_microbatch,
            device=self.device,
        )

    def _logprobs(self, batch: MicroBatch, around: Around = plain) -> Tensor:
        """Logprobs of the trained tokens after temperature, float32 [n]; logits are computed only
        where needed.
        """
        policy: Any = self.model
        hidden = hidden_states(policy.model, batch.input_ids, batch.shared, around)
        trained = hidden[batch.rows, batch.positions - batch.shared]
        logits = policy.lm_head(trained).float() / self.temperature
        chosen: Tensor = logits.gather(1, batch.targets[:, None])[:, 0] - logits.logsumexp(dim=1)
        return chosen

    def _replay_figures(self, totals: StepTotals) -> dict[str, Any]:
        if self.replay is None:
            return {}
        native = None if totals.native is None else totals.native.figures()
        return self.replay.figures(totals.mismatch.figures(), native)


def _carries(sample: Sample) -> bool:
    """Whether a sample has a gradient."""
    return sample.advantage != 0.0 and bool(sample.loss_mask.any())


def load_policy(directory: Path) -> nn.Module:
    """Load a policy from a directory in the Hugging Face layout, float32; raises TrainingError."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        policy: nn.Module = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, experts_implementation="grouped_mm"
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise TrainingError(f"cannot load the policy from {directory}: {error}") from error
    return policy


def _device(choice: str) -> torch.device:
    if choice == "cuda" and not torch.cuda.is_available():
        raise TrainingError(
            "trainer.device=cuda, but torch sees no GPU here: use trainer.device=auto or cpu"
        )
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")
