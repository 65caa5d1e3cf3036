"""Sums over the updates of a training step, and the metrics computed from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from runners.training.losses import ImportanceWeights
from runners.training.mismatch import Mismatch


@dataclass(slots=True)
class StepTotals:
    """Sums over the updates of one step; changed by the trainer alone."""

    updates: int = 0
    tokens: int = 0
    """Trained tokens; one that is trained in several updates counts in each."""
    loss: float = 0.0
    norm: float = 0.0
    """Largest gradient norm before clipping."""
    clipped: float = 0.0
    nll: float = 0.0
    """Sum over tokens of −logprob, in nats: an estimate of the entropy."""
    entropy: float = 0.0
    """Sum over tokens of the exact entropy, in nats; 0: not computed."""
    kl: float = 0.0
    """Sum over tokens of the estimated divergence from the reference policy, in nats."""
    learning_rate: float = 0.0
    failed: list[str] = field(default_factory=list)
    """Updates that were left out because a plug-in's loss failed, with the reason."""
    mismatch: Mismatch = field(default_factory=Mismatch)
    native: Mismatch | None = None
    """The mismatch without routing replay; None: not measured in this step."""
    weight: float = 0.0
    weight_squares: float = 0.0
    truncated: int = 0
    rejected: int = 0

    def add_tokens(self, logprobs: Tensor, clipped: Tensor | None) -> None:
        """Add a micro-batch's trained tokens: their logprobs, and which of them were clipped."""
        self.tokens += len(logprobs)
        self.clipped += 0.0 if clipped is None else float(clipped.sum())
        self.nll -= logprobs.detach().sum().item()

    def add_weights(self, part: ImportanceWeights) -> None:
        """Add a micro-batch's importance weights."""
        self.weight += float(part.weights.sum())
        self.weight_squares += float(part.weights.square().sum())
        self.truncated += part.truncated
        self.rejected += part.rejected

    def count_update(self, loss: float, norm: float) -> None:
        """Count an optimizer update with its loss and its gradient norm before clipping."""
        self.updates += 1
        self.loss += loss
        self.norm = max(self.norm, norm)

    def metrics(self, seconds: float) -> dict[str, Any]:
        """Return the step's metrics; ``seconds``: duration of the training.

        With a correction ``policy/ess`` is the effective sample size, ``(Σw)² / Σw²`` (Kong 1992),
        as a share of the tokens.
        """
        tokens = max(1, self.tokens)
        metrics: dict[str, Any] = {
            "loss/policy": self.loss / max(1, self.updates),
            "policy/k3": self.mismatch.metrics()["k3"],
            "policy/clip_fraction": self.clipped / tokens,
            "policy/entropy": (self.entropy or self.nll) / tokens,
            "policy/grad_norm": self.norm,
            "train/updates": float(self.updates),
            "train/learning_rate": self.learning_rate,
            "time/train_s": seconds,
        }
        if self.kl:
            metrics["policy/kl"] = self.kl / tokens
        if self.failed:
            metrics["train/updates_failed"] = float(len(self.failed))
        if self.weight_squares:
            metrics["policy/ess"] = self.weight**2 / self.weight_squares / tokens
            metrics["policy/truncated"] = self.truncated / tokens
            metrics["policy/rejected"] = self.rejected / tokens
        return metrics
