"""The sample: one token chain with its loss mask, logprobs and advantage, as trainers take it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
