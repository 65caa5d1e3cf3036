"""The weight of a trained token in the loss of an update."""

from __future__ import annotations

from collections.abc import Sequence

from conf.sections.training import Aggregation
from runners.training.sample import Sample

Rollout = Sequence[Sample]
"""Every sample of one rollout; empty if nothing of it is trained."""


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
