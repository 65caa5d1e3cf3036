"""What the trainer gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runners.trajectory.record import IdArray, LogprobArray
from runners.trajectory.routing import Routing


@dataclass(frozen=True, slots=True)
class Sample:
    """One segment, with what it is worth."""

    rollout_id: str
    """The same for all samples of a rollout."""
    tokens: IdArray
    """[T]"""
    loss_mask: NDArray[np.bool_]
    """[T]; True on sampled tokens that are trained."""
    logprobs: LogprobArray
    """[T]; the engine's logprob at sampling time, 0.0 where not sampled."""
    advantage: float
    """The segment's share of its rollout's advantage, which is the rollout's within its group."""
    weight_versions: NDArray[np.int32] | None = None
    """[T]; the weights each token was sampled from, -1 where not sampled; None: unknown."""
    routing: Routing | None = None
    """Present on all samples of a batch or on none."""
    old_logprobs: LogprobArray | None = None
    """[T]; training's own before the step's first update, 0.0 where not trained; None: not
    computed.
    """
