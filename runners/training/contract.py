"""The contract of policy losses, the call of a loss of the user's own, and the error of training.

Loads no torch: plug-ins and their check import it.

Invariant: a loss is a number per trained token. How tokens are averaged, and the importance weights
that correct an engine's difference, are the trainer's: they multiply what a loss returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from conf.errors import AgentrlError
from runners.system.plugins import PluginFailedError, describe_failure

if TYPE_CHECKING:
    from torch import Tensor


NAME = "trainer.loss"
"""The key that chooses a loss."""


class TrainingError(AgentrlError):
    """Training cannot go on: the loss or a gradient is not finite, or the weights do not fit."""


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


def compute_loss(loss: PolicyLoss, tokens: TrainedTokens) -> TokenLosses:
    """Return a loss of the user's own, checked; raises PluginFailedError."""
    from torch import Tensor

    try:
        found = loss(tokens)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # of a thread: no ctrl-C is there
        raise describe_failure(NAME, error) from error
    losses = getattr(found, "losses", None)
    if not isinstance(found, TokenLosses) or not isinstance(losses, Tensor):
        kind = type(losses if isinstance(found, TokenLosses) else found).__name__
        raise PluginFailedError(f"{NAME} returned {kind}: it has to return TokenLosses(tensor)")
    given = {name: getattr(found, name) for name in ("losses", "clipped_low", "clipped_high")}
    for name, tensor in given.items():
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
    import torch

    generator = torch.Generator().manual_seed(0)
    old = -3 * torch.rand(7, generator=generator)
    change = torch.tensor([0.1, 0.0, -0.2, 0.0, 0.5, -0.1, 0.0])  # on fresh rollouts all are 0
    logprobs = (old + change).requires_grad_()
    advantages = torch.tensor([1.5, 1.5, 1.5, -0.5, -0.5, -0.5, -0.5])
    rows = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    found = compute_loss(loss, TrainedTokens(logprobs, old, old.clone(), advantages, rows))
    (slopes,) = torch.autograd.grad(found.losses.sum(), logprobs)
    if not bool(slopes.isfinite().all()):
        raise PluginFailedError(f"{NAME}: a gradient that is not finite")
