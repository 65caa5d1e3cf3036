"""What a trainer's step adds up over its updates, and the metrics made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runners.training.losses import Corrected, PolicyLoss
from runners.training.mismatch import Mismatch


@dataclass(slots=True)
class StepTotals:
    """Sums over the updates of one step; changed by the trainer alone."""

    updates: int = 0
    tokens: int = 0
    loss: float = 0.0
    norm: float = 0.0
    clipped: float = 0.0
    nll: float = 0.0
    mismatch: Mismatch = field(default_factory=Mismatch)
    native: Mismatch | None = None
    """Without replay; None: not measured in this step."""
    weight: float = 0.0
    weight_squares: float = 0.0
    truncated: int = 0
    rejected: int = 0

    def add(self, part: PolicyLoss, tokens: int) -> None:
        """Add a micro-batch."""
        self.tokens += tokens
        self.clipped += part.clipped
        self.nll += part.nll_sum

    def corrected(self, part: Corrected) -> None:
        """Add a micro-batch's importance weights."""
        self.weight += float(part.weights.sum())
        self.weight_squares += float(part.weights.square().sum())
        self.truncated += part.truncated
        self.rejected += part.rejected

    def updated(self, loss: float, norm: float) -> None:
        """Count an update."""
        self.updates += 1
        self.loss += loss
        self.norm = max(self.norm, norm)

    def metrics(self, seconds: float) -> dict[str, Any]:
        """Return the step's metrics."""
        tokens = max(1, self.tokens)
        metrics: dict[str, Any] = {
            "loss/policy": self.loss / max(1, self.updates),
            "policy/k3": self.mismatch.figures()["k3"],
            "policy/clip_fraction": self.clipped / tokens,
            "policy/entropy": self.nll / tokens,
            "policy/grad_norm": self.norm,
            "train/updates": float(self.updates),
            "time/train_s": seconds,
        }
        if self.weight_squares:
            # effective sample size, (Σw)² / Σw², as a share of the tokens (Kong 1992)
            metrics["policy/ess"] = self.weight**2 / self.weight_squares / tokens
            metrics["policy/truncated"] = self.truncated / tokens
            metrics["policy/rejected"] = self.rejected / tokens
        return metrics
