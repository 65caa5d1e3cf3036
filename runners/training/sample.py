"""The sample: one token chain with its loss mask, logprobs and advantage, as trainers take it.

Here too: which samples change the weights (the trainer runs them, the metrics count them), and the
weight of a trained token in the loss of an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from conf.sections.training import Aggregation, TrainerConfig
from runners.records.graph import trains_without_advantage
from runners.records.record import IdArray, LogprobArray
from runners.records.routing import Routing


@dataclass(frozen=True, slots=True)
class Sample:
    """One segment of a rollout with its share of the advantage; T tokens."""

    rollout_id: str
    """The same for all samples of a rollout."""
    tokens: IdArray
    """int32 [T]: exactly the ids that the model saw and sampled."""
    loss_mask: NDArray[np.bool_]
    """bool [T]: True on sampled tokens that are trained."""
    logprobs: LogprobArray
    """float32 [T]: the engine's logprob at sampling time, after temperature; 0.0 where not sampled.
    """
    advantage: float
    """The segment's share of its rollout's advantage, which is the rollout's within its group."""
    weight_versions: NDArray[np.int32] | None = None
    """int32 [T]: version of the weights that sampled each token, -1 where not sampled; None:
    unknown.
    """
    routing: Routing | None = None
    """Captured experts; present on all samples of a step or on none."""
    old_logprobs: LogprobArray | None = None
    """float32 [T]: the trainer's logprob before the step's first update, 0.0 where not trained;
    None: not computed.
    """
    reference_logprobs: LogprobArray | None = None
    """float32 [T]: the reference policy's logprob, 0.0 where not trained; None: not computed."""
    token_advantages: LogprobArray | None = None
    """float32 [T]: advantage of each token (``trainer.credit=turn``); None: all have
    ``advantage``.
    """
    teacher_logprobs: LogprobArray | None = None
    """float32 [T]: the teacher's logprob, 0.0 where not trained; None: there is no teacher."""

    def without_routing(self) -> Sample:
        """Return the sample as one that is not trained, since its routing is wrong."""
        silent = None if self.teacher_logprobs is None else self.logprobs  # an advantage of 0
        return replace(
            self, routing=None, advantage=0.0, token_advantages=None, teacher_logprobs=silent
        )

    @property
    def trained_advantages(self) -> LogprobArray:
        """Advantages of the trained tokens, float32 [n]."""
        if self.token_advantages is None:
            return np.full(int(self.loss_mask.sum()), self.advantage, np.float32)
        return self.token_advantages[self.loss_mask]

    @property
    def has_advantage(self) -> bool:
        """True if any trained token has an advantage that is not exactly 0."""
        if self.token_advantages is None:
            return self.advantage != 0.0
        return bool(self.trained_advantages.any())


Rollout = Sequence[Sample]
"""Every sample of one rollout; empty if nothing of it is trained."""


def has_gradient(sample: Sample, trainer: TrainerConfig) -> bool:
    """Return whether a sample changes the weights, as far as its advantage decides it."""
    trains = sample.has_advantage or trains_without_advantage(trainer)
    return trains and bool(sample.loss_mask.any())


def compute_token_weights(
    rollouts: Sequence[Rollout], aggregation: Aggregation = "rollout", constant: int = 1
) -> list[float]:
    """Return the weight of one trained token of each sample, samples in order of their rollouts.

    With R rollouts in the update, T trained tokens in the token's rollout or segment:

    - rollout: ``1 / (R·T)``. A rollout weighs ``1 / R``, whatever its length and fan-out; one
      without samples still counts: leaving its tokens out does not make the others weigh more.
      Rollouts of 2 and 8 trained tokens, one sample each, give ``[1/4, 1/16]``.
    - token: ``1 / ΣT`` (DAPO, arXiv 2503.14476); the same rollouts give ``[1/10, 1/10]``.
    - segment: ``1 / (S·T)`` with S segments that have trained tokens.
    - constant: ``1 / (R·constant)`` (Dr. GRPO, arXiv 2503.20783).
    """
    counts = [[int(sample.loss_mask.sum()) for sample in samples] for samples in rollouts]
    number = len(rollouts)
    match aggregation:
        case "token":
            total = sum(map(sum, counts))
            return [1.0 / max(1, total) for each in counts for _ in each]
        case "segment":
            segments = sum(count > 0 for each in counts for count in each)
            return [1.0 / (max(1, segments) * max(1, count)) for each in counts for count in each]
        case "constant":
            return [1.0 / (number * constant) for each in counts for _ in each]
    return [1.0 / (number * max(1, sum(each))) for each in counts for _ in each]
