"""The objective of an update: policy loss, its correction, KL penalty and entropy bonus.

Invariant: every part is a sum over tokens, weighted alike, so that the micro-batches of an update
add up to the whole. The correction weighs the policy loss alone.
"""

from __future__ import annotations

from torch import Tensor

from conf.sections.plugin import PluginConfig
from conf.sections.training import LocalTrainerConfig
from runners.training.contract import TrainedTokens, compute_loss
from runners.training.distillation import distill
from runners.training.losses import (
    compute_importance_weights,
    is_active,
    make_loss,
    replace_rounded,
)
from runners.training.micro_batches import MicroBatch
from runners.training.recompute import Entropy
from runners.training.reference import estimate_kl, penalize
from runners.training.totals import StepTotals


class Objective:
    """Sum that one trainer minimises."""

    def __init__(self, config: LocalTrainerConfig) -> None:
        """Load a loss of the user's own; raises PluginError."""
        self._config = config
        self._loss = make_loss(config)
        self._own_loss = isinstance(config.loss, PluginConfig)
        self.needs_reference = config.kl.weight > 0
        self.entropy: Entropy = "gradient" if config.entropy_bonus > 0 else "value"
        """Entropies that ``compute`` needs."""

    def compute(self, batch: MicroBatch, found: Tensor, totals: StepTotals) -> Tensor:
        """Return a micro-batch's objective, float32 [], differentiable.

        ``found``: float32 [n, 2], logprobs and entropies. The ratio compares with
        the engine's logprobs, or with the trainer's own before the step's first update where the
        two differ by rounding alone; with a correction, always with the trainer's own, and the
        importance weights bridge the two. Raises PluginFailedError.
        """
        kl, logprobs, rollout = self._config.kl, found[:, 0], batch.rollout_logprobs
        weights, advantages = batch.weights, batch.advantages
        if totals.updates == 0:  # before the first update both sides have the same weights
            totals.mismatch.add(logprobs, rollout)
        own = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        totals.add_ratios(own, rollout)
        old = replace_rounded(own, rollout)
        if batch.teacher_logprobs is not None:
            advantages = distill(advantages, rollout, batch.teacher_logprobs, self._config.distill)
            totals.add_teacher(rollout, batch.teacher_logprobs)
        if batch.reference_logprobs is not None and kl.place == "reward":
            reference = batch.reference_logprobs
            advantages = penalize(advantages, rollout, reference, batch.rows, kl)
        if is_active(self._config.correction):
            old = own
            importance = compute_importance_weights(
                old, rollout, advantages, batch.rows, self._config.correction
            )
            totals.add_weights(importance)
            weights = weights * importance.weights
        tokens = TrainedTokens(logprobs, old, rollout, advantages, batch.rows)
        losses = compute_loss(self._loss, tokens) if self._own_loss else self._loss(tokens)
        objective = (losses.losses * weights).sum()
        totals.add_tokens(tokens, losses, found[:, 1])
        if batch.reference_logprobs is not None:
            totals.add_distance(logprobs, batch.reference_logprobs)
            if kl.place == "loss":
                distance = estimate_kl(logprobs, batch.reference_logprobs, kl.estimator)
                objective = objective + kl.weight * (distance * batch.weights).sum()
        if self.entropy == "gradient":
            bonus = (found[:, 1] * batch.weights).sum()
            objective = objective - self._config.entropy_bonus * bonus
        return objective
