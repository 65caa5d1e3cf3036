"""The contract of policy losses, without torch: plug-ins and their check import it.

Invariant: a loss is a number per trained token. How tokens are averaged, and the importance weights
that correct an engine's difference, are the trainer's: they multiply what a loss returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """The trained tokens of some samples; every sample is whole. No tensor must be changed."""

    logprobs: Tensor
    """float32 [n]: logprob now, in nats, after temperature; the one with a gradient."""
    old_logprobs: Tensor
    """float32 [n]: the logprob to compare with: the engine's, or the trainer's own before the
    step's first update where there is a correction, and where both are equal but for rounding.
    """
    rollout_logprobs: Tensor
    """float32 [n]: the engine's when it sampled the token."""
    advantages: Tensor
    """float32 [n]: advantage of the token's sample, or of its turn."""
    rows: Tensor
    """int64 [n]: number of the token's sample, from 0; tokens of a sample are in order."""


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """Losses of trained tokens, as a ``PolicyLoss`` returns them."""

    losses: Tensor
    """float32 [n], finite; differentiable with respect to ``TrainedTokens.logprobs``."""
    clipped_low: Tensor | None = None
    """bool [n]: tokens whose gradient was removed because the ratio is below its lower bound, for
    ``policy/clipped_low``.
    """
    clipped_high: Tensor | None = None
    """bool [n]: tokens whose gradient was removed or bounded because it is above an upper one."""


class PolicyLoss(Protocol):
    """Computes the loss of trained tokens, whose gradient is that of one update."""

    def __call__(self, tokens: TrainedTokens) -> TokenLosses:
        """Return a loss per token. A token's may depend on others of its sample, on no other's.

        Should it raise, or return what is not finite, the update is left out.
        """
        ...
