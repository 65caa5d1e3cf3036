"""Sum the difference between training's and the engine's logprobs over a step's trained tokens.

The figures are those of ``runners.training.mismatch``. There a step's differences are at hand; here
they are spread over processes, so that only sums travel. Their quantile is read off a histogram.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SUMS = ("tokens", "delta", "k3", "F_1.1", "F_2")
BINS = 2048
SMALLEST, LARGEST = 1e-7, 1e3
"""|Δ| in nats between which the histogram has its bins, each 1.1 % wide; others are counted in the
first and the last.
"""
_WIDTH = log(LARGEST / SMALLEST) / BINS
SIZE = len(SUMS) + BINS


class MismatchSums:
    """Sums over tokens of one process, on its device; grows by ``add``."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        """float64 [SIZE]"""

    def add(
        self, trained: Sequence[Tensor], sampled: Sequence[Tensor], masks: Sequence[Tensor]
    ) -> None:
        """Add samples: for each float [n] logprobs of training and of the engine, and its mask [n],
        which is not 0 at tokens in the loss.
        """
        mask = torch.cat(list(masks)) != 0
        delta = torch.cat(list(trained)).detach().double() - torch.cat(list(sampled)).double()
        delta = torch.where(mask, delta, 0.0)  # other tokens were not sampled
        weight, distance = mask.double(), delta.abs()
        places = ((distance.clamp_min(SMALLEST) / SMALLEST).log() / _WIDTH).nan_to_num(BINS)
        found = torch.zeros(SIZE, dtype=torch.float64, device=delta.device)
        found[: len(SUMS)] = torch.stack(
            [
                weight.sum(),
                delta.sum(),
                (torch.expm1(delta) - delta).sum(),  # in float64: for a small Δ the terms cancel
                ((distance > log(1.1)) * weight).sum(),
                ((distance > log(2.0)) * weight).sum(),
            ]
        )
        found[len(SUMS) :].scatter_add_(0, places.long().clamp(0, BINS - 1), weight)
        self._sums = found if self._sums is None else self._sums + found

    def take(self) -> NDArray[np.float64]:
        """Return the sums, float64 [SIZE], and begin anew."""
        found, self._sums = self._sums, None
        return np.zeros(SIZE) if found is None else found.cpu().numpy()


def find_metrics(sums: NDArray[np.float64]) -> dict[str, float | None]:
    """Return ``k1``, ``k3``, ``p999_abs`` (to 1 %), ``F_1.1`` and ``F_2`` (``Mismatch.metrics``) of
    the sums of all processes, float64 [SIZE]; None without tokens, or where Δ is not finite.
    """
    tokens, delta, k3, far, farther = (float(value) for value in sums[: len(SUMS)])
    if not tokens:
        return dict.fromkeys(("k1", "k3", "p999_abs", "F_1.1", "F_2"))
    passed = np.cumsum(sums[len(SUMS) :])
    place = int(np.searchsorted(passed, 0.999 * tokens))
    quantile = 0.0 if place == 0 else SMALLEST * float(np.exp((place + 0.5) * _WIDTH))
    found = {
        "k1": -delta / tokens,
        "k3": k3 / tokens,
        "p999_abs": quantile,
        "F_1.1": far / tokens,
        "F_2": farther / tokens,
    }
    return {name: value if np.isfinite(value) else None for name, value in found.items()}
