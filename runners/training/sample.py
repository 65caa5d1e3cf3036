"""What the trainer gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runners.trajectory.record import IdArray, LogprobArray


@dataclass(frozen=True, slots=True)
class Sample:
    """One segment, with what it is worth."""

    rollout_id: str
    """Samples of one rollout share it; the loss is averaged per rollout."""
    tokens: IdArray
    """[T]"""
    loss_mask: NDArray[np.bool_]
    """[T]; True on sampled tokens that are trained."""
    logprobs: LogprobArray
    """[T]; the engine's logprob at sampling time, 0.0 where not sampled."""
    advantage: float
    """Of the rollout, within its prompt group."""
