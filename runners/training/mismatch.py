"""How far training is from the rollout, before a step's first update: the same weights, another
engine.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Mismatch:
    """Collects, over the trained tokens of a step, logprob in training − logprob at sampling."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def add(self, logprobs: Tensor, rollout_logprobs: Tensor) -> None:
        """Add tokens, float32 [n] each."""
        self._parts.append((logprobs - rollout_logprobs).detach().cpu())

    @property
    def tokens(self) -> int:
        """How many there are."""
        return sum(len(part) for part in self._parts)

    def figures(self) -> dict[str, float | None]:
        """Return the figures; all None without tokens.

        ``k1``, ``k3``: estimates of KL(rollout ‖ train) (Schulman 2020); ``p999_abs``: 99.9th
        percentile of |Δ logprob|; ``F_τ``: share of tokens whose probabilities differ by more than
        a factor of τ (Ma et al. 2025, arXiv 2510.11370).
        """
        if not self.tokens:
            return dict.fromkeys(("k1", "k3", "p999_abs", "F_1.1", "F_2"), None)
        delta = torch.cat(self._parts).double().numpy()
        away = np.abs(delta)
        return {
            "k1": float(-delta.mean()),
            "k3": float(np.mean(np.expm1(delta) - delta)),
            "p999_abs": float(np.quantile(away, 0.999)),
            "F_1.1": float(np.mean(away > np.log(1.1))),
            "F_2": float(np.mean(away > np.log(2.0))),
        }
