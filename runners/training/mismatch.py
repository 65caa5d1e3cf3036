"""The difference between the trainer's and the engine's logprobs under the same weights.

It is measured on the trained tokens before a step's first update: what is left then is not
learning, but another implementation, precision or routing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Mismatch:
    """Collects ``Δ = logprob in training − logprob at sampling`` over the trained tokens of a
    step; grows by ``add``.
    """

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def add(self, logprobs: Tensor, rollout_logprobs: Tensor) -> None:
        """Add tokens, float32 [n] each: the trainer's logprobs and the engine's."""
        self._parts.append((logprobs - rollout_logprobs).detach().cpu())

    def joined(self, join: Callable[[Tensor], Tensor]) -> Mismatch:
        """Return the mismatch over the tokens of all processes, which ``join`` returns for those of
        this one.
        """
        whole = Mismatch()
        whole._parts = [join(torch.cat([torch.zeros(0), *self._parts]))]
        return whole

    @property
    def tokens(self) -> int:
        """Number of tokens collected."""
        return sum(len(part) for part in self._parts)

    def metrics(self) -> dict[str, float | None]:
        """Return the figures of the step, in nats where they have a unit; None without tokens.

        ``k1 = −mean(Δ)`` and ``k3 = mean(exp(Δ) − 1 − Δ)`` estimate KL(rollout ‖ train) from the
        rollout's samples; k3 is never negative and has less variance (Schulman 2020,
        http://joschu.net/blog/kl-approx.html). ``p999_abs``: 99.9th percentile of |Δ|. ``F_τ``:
        share of tokens whose probabilities differ by more than a factor of τ (Ma et al. 2025, arXiv
        2510.11370).

        Computed in float64: for a small Δ the terms of k3 cancel to about Δ² / 2, far below
        float32's resolution of 1.
        """
        if not self.tokens:
            return dict.fromkeys(("k1", "k3", "p999_abs", "F_1.1", "F_2"), None)
        delta = self._delta()
        distance = np.abs(delta)
        return {
            "k1": float(-delta.mean()),
            "k3": float(np.mean(_k3(delta))),
            "p999_abs": float(np.quantile(distance, 0.999)),
            "F_1.1": float(np.mean(distance > np.log(1.1))),
            "F_2": float(np.mean(distance > np.log(2.0))),
        }

    def estimate_k3(self) -> tuple[float, float] | None:
        """Return k3 and its standard error, None without tokens; that of one token is infinite."""
        if not self.tokens:
            return None
        terms = _k3(self._delta())
        error = float(terms.std(ddof=1) / np.sqrt(len(terms))) if len(terms) > 1 else float("inf")
        return float(terms.mean()), error

    def _delta(self) -> NDArray[np.float64]:
        found: NDArray[np.float64] = torch.cat(self._parts).double().numpy()
        return found


def _k3(delta: NDArray[np.float64]) -> NDArray[np.float64]:
    terms: NDArray[np.float64] = np.expm1(delta) - delta
    return terms
