"""Sums over the updates of a training step, and the metrics computed from them.

Invariant: the keys are the same in every step; a figure of nothing is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from runners.training.contract import TokenLosses, TrainedTokens
from runners.training.losses import ImportanceWeights
from runners.training.micro_batches import MicroBatch
from runners.training.mismatch import Mismatch
from runners.training.reference import estimate_kl

LARGEST_LOG_RATIO = 300.0
"""Keeps the squares of ratios within float64."""


@dataclass(slots=True)
class StepTotals:
    """Sums over the updates of one step; changed by the trainer alone."""

    updates: int = 0
    tokens: int = 0
    """Trained tokens; one that is trained in several updates counts in each."""
    loss: float = 0.0
    norm: float = 0.0
    """Largest gradient norm before clipping."""
    clipped_low: int = 0
    clipped_high: int = 0
    entropy: float = 0.0
    """Sum over tokens of the entropy of the distribution that they are sampled from, in nats."""
    moved: float = 0.0
    """Sum over tokens of the estimated divergence from the policy before the step, in nats."""
    kl: float | None = None
    """Sum over tokens of the estimated divergence from the reference policy, in nats."""
    teacher: float | None = None
    """Sum over tokens of log π_rollout − log π_teacher, in nats."""
    learning_rate: float = 0.0
    failed: list[str] = field(default_factory=list)
    """Updates that were left out because a plug-in's loss failed, with the reason."""
    mismatch: Mismatch = field(default_factory=Mismatch)
    native: Mismatch | None = None
    """The mismatch without routing replay; None: not measured in this step."""
    ratio: float = 0.0
    ratio_squares: float = 0.0
    truncated: int = 0
    rejected: int = 0
    flat: int = 0
    """Positions that samples would take one by one."""
    nodes: int = 0
    """Positions that differ in their history."""
    positions: int = 0
    """Positions that updates run: nodes, those that a pack repeats, and padding of rows."""

    def add_positions(self, batch: MicroBatch) -> None:
        """Count the positions of a micro-batch that an update runs."""
        self.flat += sum(map(len, batch.paths))
        self.nodes += batch.nodes
        self.positions += batch.input_ids.numel()

    def add_tokens(self, tokens: TrainedTokens, losses: TokenLosses, entropies: Tensor) -> None:
        """Add a micro-batch's trained tokens; ``entropies``: float32 [n], in nats."""
        self.tokens += len(tokens.logprobs)
        self.clipped_low += _count(losses.clipped_low)
        self.clipped_high += _count(losses.clipped_high)
        self.entropy += entropies.detach().sum().item()
        self.moved += _estimate_distance(tokens.old_logprobs, tokens.logprobs)

    def add_distance(self, logprobs: Tensor, reference: Tensor) -> None:
        """Add the same tokens' divergence from the reference policy; float32 [n] each."""
        self.kl = (self.kl or 0.0) + _estimate_distance(logprobs, reference)

    def add_teacher(self, rollout_logprobs: Tensor, teacher_logprobs: Tensor) -> None:
        """Add the same tokens' distance from the teacher; float32 [n] each."""
        difference = (rollout_logprobs - teacher_logprobs).double().sum().item()
        self.teacher = (self.teacher or 0.0) + difference

    def add_ratios(self, own_logprobs: Tensor, rollout_logprobs: Tensor) -> None:
        """Add the same tokens' ratios of the trainer's probability before the step's first update
        to the engine's; float32 [n] each.
        """
        difference = (own_logprobs - rollout_logprobs).double().clamp(max=LARGEST_LOG_RATIO)
        self.ratio += difference.exp().sum().item()
        self.ratio_squares += (2 * difference).exp().sum().item()

    def add_weights(self, part: ImportanceWeights) -> None:
        """Count what a correction changes in a micro-batch."""
        self.truncated += part.truncated
        self.rejected += part.rejected

    def count_update(self, loss: float, norm: float) -> None:
        """Count an optimizer update with its loss and its gradient norm before clipping."""
        self.updates += 1
        self.loss += loss
        self.norm = max(self.norm, norm)

    def metrics(self, seconds: float) -> dict[str, Any]:
        """Return the step's metrics; ``seconds``: duration of the training.

        ``policy/ess`` is the effective sample size ``(Σw)² / Σw²`` (Kong 1992) as a share of the
        tokens, ``w`` being the ratios of ``add_ratios``; divergences are k3 (``estimate_kl``).
        """

        def share(total: float | None) -> float | None:
            return total / self.tokens if total is not None and self.tokens else None

        squares = self.ratio_squares
        return {
            "loss/policy": self.loss / self.updates if self.updates else None,
            "policy/k3": self.mismatch.metrics()["k3"],
            "policy/clipped_low": share(self.clipped_low),
            "policy/clipped_high": share(self.clipped_high),
            "policy/entropy": share(self.entropy),
            "policy/kl": share(self.kl),
            "policy/kl_teacher": share(self.teacher),
            "policy/kl_step": share(self.moved),
            "policy/ess": share(self.ratio**2 / squares if squares else None),
            "policy/truncated": share(self.truncated),
            "policy/rejected": share(self.rejected),
            "policy/grad_norm": self.norm if self.updates else None,
            "train/updates": float(self.updates),
            "train/updates_failed": float(len(self.failed)),
            "train/learning_rate": self.learning_rate,
            "train/positions_flat": float(self.flat),
            "train/nodes": float(self.nodes),
            "train/positions": float(self.positions),
            "train/packing": self.nodes / self.positions if self.positions else None,
            "time/train_s": seconds,
        }


def _count(clipped: Tensor | None) -> int:
    return 0 if clipped is None else int(clipped.sum())


def _estimate_distance(logprobs: Tensor, others: Tensor) -> float:
    """Return the sum over tokens of k3, an estimate of ``KL(π ‖ other)``, π having sampled them."""
    pair = logprobs.detach().double(), others.detach().double()  # terms of k3 cancel
    return float(estimate_kl(*pair, "k3").sum())
