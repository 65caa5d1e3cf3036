"""The policy loss, and the importance weights that correct it where engine and trainer differ.

Invariant: losses and counts are summed over tokens, and a token's depends on its own sequence
alone, so that the micro-batches of an update add up to the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conf.sections.plugin import PluginConfig
from conf.sections.training import CorrectionConfig, LocalTrainerConfig
from runners.system.plugins import load_shared
from runners.training.contract import NAME, PolicyLoss, TokenLosses, TrainedTokens


@dataclass(frozen=True, slots=True)
class ClippedSurrogate:
    """``l_t = −min(r_t·A_t, clip(r_t, 1 − low, 1 + high)·A_t)``, with
    ``r_t = exp(logprob_t − old_logprob_t)``.

    PPO's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347) with DAPO's clip-higher,
    ``high > low`` (arXiv 2503.14476). With ``dual`` c, ``l_t ≤ c·|A_t|`` where ``A_t < 0`` (dual
    clip, Ye et al. 2019, arXiv 1912.09729).

    Example: at ``r = 1`` and ``A = 2`` the loss is −2 and nothing is clipped; at ``r = 1.5`` and
    ``high = 0.28`` it is −2.56, and the token has no gradient.
    """

    low: float
    high: float
    dual: float | None = None

    def __call__(self, tokens: TrainedTokens) -> TokenLosses:
        """Return the loss of each token."""
        ratio = (tokens.logprobs - tokens.old_logprobs).exp()
        return self.of_ratio(ratio, tokens.advantages)

    def of_ratio(self, ratio: Tensor, advantages: Tensor) -> TokenLosses:
        """Return the losses at these ratios, float32 [n]."""
        unclipped = ratio * advantages
        clipped = ratio.clamp(1.0 - self.low, 1.0 + self.high) * advantages
        gain, removed = torch.minimum(unclipped, clipped), (clipped < unclipped).detach()
        low, high = removed & (advantages < 0), removed & (advantages > 0)
        if self.dual is not None:
            least = torch.where(advantages < 0, self.dual * advantages, -torch.inf)
            gain, high = torch.maximum(gain, least), high | (gain < least).detach()
        return TokenLosses(-gain, low, high)


@dataclass(frozen=True, slots=True)
class SequenceSurrogate:
    """The clipped surrogate of a sequence's ratio, ``s = exp(mean_t(logprob_t − old_logprob_t))``,
    for each of its tokens: GSPO, Zheng et al. 2025 (arXiv 2507.18071).

    A sequence is a segment. Its bounds are narrow: the paper's are 3e-4 and 4e-4.
    """

    low: float
    high: float

    def __call__(self, tokens: TrainedTokens) -> TokenLosses:
        """Return the loss of each token: that of its sequence."""
        mean = mean_by_row(tokens.logprobs - tokens.old_logprobs, tokens.rows)
        surrogate = ClippedSurrogate(self.low, self.high)
        return surrogate.of_ratio(mean.exp()[tokens.rows], tokens.advantages)


@dataclass(frozen=True, slots=True)
class WeightedReinforce:
    """``l_t = −sg(min(r_t, 1 + high))·A_t·logprob_t``: CISPO (MiniMax-M1 2025, arXiv 2506.13585),
    in which every token keeps its gradient. sg: no gradient.
    """

    high: float

    def __call__(self, tokens: TrainedTokens) -> TokenLosses:
        """Return the loss of each token."""
        ratio = (tokens.logprobs - tokens.old_logprobs).detach().exp()
        losses = -ratio.clamp(max=1.0 + self.high) * tokens.advantages * tokens.logprobs
        return TokenLosses(losses, clipped_high=ratio > 1.0 + self.high)


def reinforce(tokens: TrainedTokens) -> TokenLosses:
    """Return ``l_t = −A_t·logprob_t``, without a ratio (Williams 1992)."""
    return TokenLosses(-tokens.advantages * tokens.logprobs)


def mean_by_row(values: Tensor, rows: Tensor) -> Tensor:
    """Return the mean of the values of each row, float32 [rows]; int64 [n] ``rows`` names them."""
    count = int(rows.max()) + 1 if len(rows) else 0
    zeros = values.new_zeros(count)
    tokens = zeros.scatter_add(0, rows, torch.ones_like(values))
    return zeros.scatter_add(0, rows, values) / tokens.clamp(min=1)


def make_loss(trainer: LocalTrainerConfig) -> PolicyLoss:
    """Return the loss of ``trainer.loss``; raises PluginError."""
    if isinstance(trainer.loss, PluginConfig):
        found: PolicyLoss = load_shared(trainer.loss, PolicyLoss, NAME)
        return found
    low, high = trainer.clip_low, trainer.clip_high
    losses: dict[str, PolicyLoss] = {
        "ppo": ClippedSurrogate(low, high, trainer.clip_dual),
        "gspo": SequenceSurrogate(low, high),
        "cispo": WeightedReinforce(high),
        "reinforce": reinforce,
    }
    return losses[trainer.loss]


ROUNDING = 1e-4
"""Nats. Two float32 forward passes over the same tokens differ by 1e-7 to 1e-5, depending on how
their rows were batched; engines of lower precision differ by 1e-3 and more.
"""


def replace_rounded(own_logprobs: Tensor, rollout_logprobs: Tensor) -> Tensor:
    """Return the rollout's logprobs, replaced with the trainer's own where they are equal but for
    ``ROUNDING``; all float32 [n].

    The last bits of most engines' logprobs depend on which requests they happened to batch; those
    of the embedded engine do not. Without this the same tokens could train other weights.
    """
    same = (own_logprobs - rollout_logprobs).abs() < ROUNDING
    return torch.where(same, own_logprobs, rollout_logprobs)


def is_active(correction: CorrectionConfig) -> bool:
    """Return whether a correction changes anything."""
    masks = (correction.mask_outside, correction.reject_outside, correction.reject_negative_above)
    return correction.truncate != "none" or any(mask is not None for mask in masks)


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """Importance weights of a micro-batch, and counts for the metrics."""

    weights: Tensor
    """float32 [n]; 0 for a token that is left out."""
    truncated: int
    """Number of tokens whose weight a bound changed."""
    rejected: int
    """Number of tokens that are left out."""


def compute_importance_weights(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    rows: Tensor,
    correction: CorrectionConfig,
) -> ImportanceWeights:
    """Return the factor of each token's loss, ``w = clamp(π_train / π_rollout, floor, cap)``.

    ``truncate``: "token" takes the token's own ratio, "sequence" the product over its sequence,
    "none" 1. Truncated importance sampling: Ionides 2008; for rollout engines that differ from the
    trainer: Yao et al. 2025. ``mask_outside`` sets a token's weight to 0 by its own ratio,
    ``reject_outside`` all weights of a sequence by the geometric mean of its ratios,
    ``exp(mean_t log r_t)`` (GSPO's ratio, arXiv 2507.18071), and ``reject_negative_above`` all of
    a sequence with a negative advantage by ``−mean_t log r_t`` (DeepSeek-V3.2, arXiv 2512.02556).

    ``old_logprobs``, ``rollout_logprobs``: float32 [n], of the trainer before the step's first
    update and of the engine; ``advantages``: float32 [n]; ``rows``: int64 [n], the sequence of each
    token. No gradient.
    """
    log_ratio = (old_logprobs - rollout_logprobs).detach()
    ratio, mean = log_ratio.exp(), mean_by_row(log_ratio, rows)[rows]
    weights = torch.ones_like(log_ratio)
    truncated = 0
    if correction.truncate != "none":
        tokens = torch.bincount(rows)[rows]
        raw = ratio if correction.truncate == "token" else (mean * tokens).exp()
        weights = raw.clamp(correction.floor, correction.cap)
        truncated = int((weights != raw).sum())
    outside = torch.zeros_like(weights, dtype=torch.bool)
    if correction.mask_outside is not None:
        low, high = correction.mask_outside
        outside |= (ratio < low) | (ratio > high)
    if correction.reject_outside is not None:
        low, high = correction.reject_outside
        outside |= (mean.exp() < low) | (mean.exp() > high)
    if correction.reject_negative_above is not None:
        outside |= (advantages < 0) & (-mean > correction.reject_negative_above)
    return ImportanceWeights(weights.masked_fill(outside, 0.0), truncated, int(outside.sum()))
