"""The policy loss, and the importance weights that correct it where engine and trainer differ.

Built in is PPO's clipped surrogate with an asymmetric clip. Invariant: losses and counts are summed
over tokens, so that the micro-batches of an update add up to the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conf.sections.plugin import PluginConfig
from conf.sections.training import CorrectionConfig, LocalTrainerConfig
from runners.plugins.calls import PluginFailedError, describe_failure
from runners.plugins.loading import load_shared
from runners.training.loss_contract import PolicyLoss, TokenLosses, TrainedTokens

NAME = "trainer.loss"


@dataclass(frozen=True, slots=True)
class ClippedSurrogate:
    """``l_t = −min(r_t·A_t, clip(r_t, 1 − low, 1 + high)·A_t)``, with
    ``r_t = exp(logprob_t − old_logprob_t)``.

    PPO's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347) with DAPO's clip-higher,
    ``high > low`` (arXiv 2503.14476).

    Example: at ``r = 1`` and ``A = 2`` the loss is −2 and nothing is clipped; at ``r = 1.5`` and
    ``high = 0.28`` it is −2.56, and the token has no gradient.
    """

    low: float
    high: float

    def __call__(self, tokens: TrainedTokens) -> TokenLosses:
        """Return the loss of each token."""
        ratio = (tokens.logprobs - tokens.old_logprobs).exp()
        unclipped = ratio * tokens.advantages
        clipped = ratio.clamp(1.0 - self.low, 1.0 + self.high) * tokens.advantages
        return TokenLosses(-torch.minimum(unclipped, clipped), (clipped < unclipped).detach())


def make_loss(trainer: LocalTrainerConfig) -> PolicyLoss:
    """Return the loss of ``trainer.loss``; raises PluginError."""
    if isinstance(trainer.loss, PluginConfig):
        found: PolicyLoss = load_shared(trainer.loss, PolicyLoss, "trainer.loss")
        return found
    return ClippedSurrogate(trainer.clip_low, trainer.clip_high)


def compute_loss(loss: PolicyLoss, tokens: TrainedTokens) -> TokenLosses:
    """Return a loss of the user's own, checked; raises PluginFailedError."""
    try:
        found = loss(tokens)
    except (Exception, SystemExit) as error:
        raise describe_failure(NAME, error) from error
    losses = getattr(found, "losses", None)
    if not isinstance(found, TokenLosses) or not isinstance(losses, Tensor):
        kind = type(losses if isinstance(found, TokenLosses) else found).__name__
        raise PluginFailedError(f"{NAME} returned {kind}: it has to return TokenLosses(tensor)")
    for name, tensor in (("losses", losses), ("clipped", found.clipped)):
        if tensor is not None and tensor.shape != tokens.logprobs.shape:
            shape, wanted = list(tensor.shape), list(tokens.logprobs.shape)
            raise PluginFailedError(f"{NAME}: {name} of shape {shape} for tokens of shape {wanted}")
    if not losses.requires_grad:
        raise PluginFailedError(f"{NAME}: losses that do not follow from tokens.logprobs")
    if not bool(losses.isfinite().all()):
        raise PluginFailedError(f"{NAME}: a loss that is not finite")
    return found


def try_loss(loss: PolicyLoss) -> None:
    """Compute a loss of the user's own on tokens of two samples; raises PluginFailedError."""
    generator = torch.Generator().manual_seed(0)
    old = -3 * torch.rand(7, generator=generator)
    logprobs = (old + 0.1 * torch.randn(7, generator=generator)).requires_grad_()
    advantages = torch.tensor([1.5, 1.5, 1.5, -0.5, -0.5, -0.5, -0.5])
    rows = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    compute_loss(loss, TrainedTokens(logprobs, old, old.clone(), advantages, rows))


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
    return correction.truncate != "none" or correction.reject_outside is not None


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """Importance weights of a micro-batch, and counts for the metrics."""

    weights: Tensor
    """float32 [n]; 0 for a token of a rejected sequence."""
    truncated: int
    """Number of tokens whose weight the cap cut."""
    rejected: int
    """Number of tokens of rejected sequences."""


def compute_importance_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, rows: Tensor, correction: CorrectionConfig
) -> ImportanceWeights:
    """Return the factor of each token's loss, ``w = min(π_train / π_rollout, cap)``.

    ``truncate``: "token" takes the token's own ratio, "sequence" the product over its sequence,
    "none" 1. Truncated importance sampling: Ionides 2008; for rollout engines that differ from the
    trainer: Yao et al. 2025. ``reject_outside`` sets the weights of a sequence to 0 whose geometric
    mean of the ratios, ``exp(mean_t log r_t)`` (GSPO's ratio, Zheng et al. 2025, arXiv 2507.18071),
    lies outside [low, high].

    ``old_logprobs``, ``rollout_logprobs``: float32 [n], of the trainer before the step's first
    update and of the engine; ``rows``: int64 [n], the sequence of each token. No gradient.
    """
    log_ratio = (old_logprobs - rollout_logprobs).detach()
    count = int(rows.max()) + 1 if len(rows) else 0
    zeros = torch.zeros(count, device=log_ratio.device)
    total = zeros.scatter_add(0, rows, log_ratio)
    tokens = zeros.scatter_add(0, rows, torch.ones_like(log_ratio))
    weights = torch.ones_like(log_ratio)
    truncated = 0
    if correction.truncate != "none":
        per_token = log_ratio if correction.truncate == "token" else total[rows]
        weights = per_token.exp()
        truncated = int((weights > correction.cap).sum())
        weights = weights.clamp(max=correction.cap)
    if correction.reject_outside is None:
        return ImportanceWeights(weights, truncated, 0)
    low, high = correction.reject_outside
    mean = (total / tokens.clamp(min=1)).exp()
    outside = ((mean < low) | (mean > high))[rows]
    return ImportanceWeights(weights.masked_fill(outside, 0.0), truncated, int(outside.sum()))
