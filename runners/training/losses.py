"""The policy loss: PPO's clipped surrogate with an asymmetric clip, averaged per rollout; and the
weights that correct it where training does not reproduce the rollout's logprobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conf.sections.training import CorrectionConfig


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of one micro-batch and what is worth watching; sums, so that parts add up."""

    loss: Tensor
    """Scalar; differentiable."""
    clipped: float
    """Tokens whose gradient the clip removed."""
    nll_sum: float
    """Sum over tokens of −logprob: an estimate of the entropy."""


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    low: float,
    high: float,
) -> PolicyLoss:
    """Clipped surrogate (Schulman et al. 2017, arXiv 1707.06347) with clip-higher (DAPO, arXiv
    2503.14476).

    All arguments are float32 of shape [n], one entry per trained token: the logprob now, the
    logprob to compare it with, the sample's advantage, and the token's weight in the average (1 /
    (rollouts in the update · tokens of its rollout), so that a long rollout counts as much as a
    short one).
    """
    ratio = (logprobs - old_logprobs).exp()
    plain = ratio * advantages
    clipped = ratio.clamp(1.0 - low, 1.0 + high) * advantages
    loss = -(torch.minimum(plain, clipped) * weights).sum()
    with torch.no_grad():
        removed = (clipped < plain).sum().item()
        nll = -logprobs.sum().item()
    return PolicyLoss(loss, float(removed), nll)


def corrects(correction: CorrectionConfig) -> bool:
    """Whether a correction does anything."""
    return correction.truncate != "none" or correction.reject_outside is not None


@dataclass(frozen=True, slots=True)
class Corrected:
    """Importance weights, and what they did."""

    weights: Tensor
    """float32 [n]; 0 for a token of a rejected sequence."""
    truncated: int
    """Tokens whose weight the cap cut."""
    rejected: int
    """Tokens of rejected sequences."""


def importance_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, rows: Tensor, correction: CorrectionConfig
) -> Corrected:
    """Return what each token's loss is multiplied with: π_train / π_rollout, truncated.

    Token- or sequence-wise (the sequence's is the product of its tokens' ratios); truncated
    importance sampling: Ionides 2008; for rollout engines: Yao et al. 2025. The band is on the
    geometric mean of a sequence's ratios, GSPO's ratio (Zheng et al. 2025, arXiv 2507.18071).
    ``rows``: int64 [n], the sequence of each token.
    """
    log_ratio = (old_logprobs - rollout_logprobs).detach()
    count = int(rows.max()) + 1 if len(rows) else 0
    zeros = torch.zeros(count, device=log_ratio.device)
    total = zeros.scatter_add(0, rows, log_ratio)
    tokens = zeros.scatter_add(0, rows, torch.ones_like(log_ratio))
    weights = torch.ones_like(log_ratio)
    truncated = 0
    if correction.truncate != "none":
        each = log_ratio if correction.truncate == "token" else total[rows]
        weights = each.exp()
        truncated = int((weights > correction.cap).sum())
        weights = weights.clamp(max=correction.cap)
    if correction.reject_outside is None:
        return Corrected(weights, truncated, 0)
    low, high = correction.reject_outside
    mean = (total / tokens.clamp(min=1)).exp()
    outside = ((mean < low) | (mean > high))[rows]
    return Corrected(weights.masked_fill(outside, 0.0), truncated, int(outside.sum()))
