"""Pack samples into padded micro-batches, weighted so that every rollout counts alike.

Right padding under a causal mask needs no attention mask: a padded position comes after every real
one of its row, so no real one attends to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from conf.sections.training import Aggregation
from runners.training.sample import Sample
from runners.trajectory.prefix import common_prefix_length
from runners.trajectory.record import LogprobArray

OPENING = 64
"""Rows that begin with the same 64 tokens are batched together: as a rule they share many more."""
Rollout = Sequence[Sample]
"""Every sample of one rollout; empty if nothing of it is trained."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of tokens, and the flat list of predictions that are trained."""

    samples: tuple[int, ...]
    """Index of each row's sample in the list that was batched."""
    rollout_ids: tuple[str, ...]
    """Rollout of each row."""
    lengths: tuple[int, ...]
    """Tokens of each row; what follows is padding."""
    input_ids: Tensor
    """int64 [B, T], right-padded with 0."""
    shared: int
    """Leading tokens that are the same in all rows. No position before ``shared`` predicts a
    trained token, so they can be run once for all rows.
    """
    rows: Tensor
    """int64 [n]: row of each trained token."""
    positions: Tensor
    """int64 [n]: position whose output predicts the trained token: its index − 1."""
    targets: Tensor
    """int64 [n]: the trained token."""
    rollout_logprobs: Tensor
    """float32 [n]: the engine's logprob at sampling time."""
    old_logprobs: Tensor | None
    """float32 [n]: the trainer's logprob before the step's first update; None: not computed."""
    reference_logprobs: Tensor | None
    """float32 [n]: the reference policy's logprob; None: there is none."""
    teacher_logprobs: Tensor | None
    """float32 [n]: the teacher's logprob; None: there is none."""
    advantages: Tensor
    """float32 [n]: advantage of the token."""
    weights: Tensor
    """float32 [n]: weight of the token in the loss."""
    experts: Tensor | None
    """int16 [B, T, layers, K]: routing to replay; None: the samples carry none."""
    routed: Tensor | None
    """bool [B, T]: where ``experts`` is known; never in padding."""


def split_rollouts(
    rollouts: Sequence[Rollout], parts: int, generator: torch.Generator
) -> list[list[Rollout]]:
    """Shuffle rollouts and split them into at most ``parts`` lists of nearly equal length.

    No list is empty. Example: 5 rollouts in 2 parts give lists of 3 and 2.
    """
    order = torch.randperm(len(rollouts), generator=generator).tolist()
    dealt = [[rollouts[index] for index in order[part::parts]] for part in range(parts)]
    return [part for part in dealt if part]


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


def make_micro_batches(
    samples: Sequence[Sample],
    weights: Sequence[float],
    *,
    tokens_per_microbatch: int,
    device: torch.device,
    share: bool = True,
) -> Iterator[MicroBatch]:
    """Yield padded micro-batches of at most ``tokens_per_microbatch`` tokens, padding included and
    a shared beginning counted once; a longer sample is a micro-batch of its own.

    Rows are grouped by their first tokens, so that they share much, and by length, so that little
    is padding; rows of one length are in the order of their tokens, since that of concurrent
    sub-agents' segments is chance. ``weights``: of one trained token of each sample, see
    ``compute_token_weights``. ``share``: false runs a shared beginning in every row. Raises
    ValueError for a sample whose first token is trained: nothing predicts it.
    """
    for _, group in groupby(sorted(range(len(samples)), key=_place(samples)), _opening(samples)):
        order = list(group)
        shared = _shared([samples[index] for index in order]) if share else 0
        start = 0
        while start < len(order):
            longest = len(samples[order[start]].tokens)
            size = max(1, (tokens_per_microbatch - shared) // (longest - shared))
            chosen = order[start : start + size]
            yield _pad(
                [samples[index] for index in chosen],
                [weights[index] for index in chosen],
                tuple(chosen),
                shared if len(chosen) > 1 else 0,
                device,
            )
            start += size


def select_tokens(batch: MicroBatch, kept: Tensor) -> MicroBatch:
    """Return the batch with some of its trained tokens, bool [n]; ``rows`` are numbered anew."""

    def part(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[kept]

    return replace(
        batch,
        rows=torch.unique(batch.rows[kept], return_inverse=True)[1],
        positions=batch.positions[kept],
        targets=batch.targets[kept],
        rollout_logprobs=batch.rollout_logprobs[kept],
        old_logprobs=part(batch.old_logprobs),
        reference_logprobs=part(batch.reference_logprobs),
        teacher_logprobs=part(batch.teacher_logprobs),
        advantages=batch.advantages[kept],
        weights=batch.weights[kept],
    )


def _opening(samples: Sequence[Sample]) -> Callable[[int], bytes]:
    return lambda index: samples[index].tokens[:OPENING].tobytes()


def _place(samples: Sequence[Sample]) -> Callable[[int], tuple[bytes, int, str, bytes]]:
    opening = _opening(samples)

    def place(index: int) -> tuple[bytes, int, str, bytes]:
        sample = samples[index]
        return opening(index), -len(sample.tokens), sample.rollout_id, sample.tokens.tobytes()

    return place


def _shared(samples: Sequence[Sample]) -> int:
    """Return how many leading tokens all samples share before their first trained prediction."""
    first_trained = min(int(np.argmax(sample.loss_mask)) for sample in samples)
    shared = min(first_trained - 1, common_prefix_length(*(sample.tokens for sample in samples)))
    if shared > 0 and samples[0].routing is not None:
        shared = min(shared, _same_routing(samples, shared))
    return max(0, shared)


def _same_routing(samples: Sequence[Sample], most: int) -> int:
    """Return how many of the first ``most`` tokens were routed alike in all samples."""
    parts = [sample.routing for sample in samples if sample.routing is not None]
    first = parts[0]
    same = most if len(parts) == len(samples) else 0
    for part in parts[1:]:
        differs = first.valid[:same] != part.valid[:same]
        differs |= (first.experts[:same] != part.experts[:same]).any(axis=(1, 2))
        same = int(np.argmax(differs)) if differs.any() else same
    return same


def _pad(
    samples: list[Sample],
    weights: list[float],
    order: tuple[int, ...],
    shared: int,
    device: torch.device,
) -> MicroBatch:
    longest = max(len(sample.tokens) for sample in samples)
    ids = np.zeros((len(samples), longest), dtype=np.int64)
    rows, places = [], []
    for row, sample in enumerate(samples):
        if sample.loss_mask[0]:
            raise ValueError(
                f"{sample.rollout_id}: a sample's first token has no context and cannot be trained"
            )
        ids[row, : len(sample.tokens)] = sample.tokens
        trained = np.flatnonzero(sample.loss_mask)
        rows.append(np.full(len(trained), row))
        places.append(trained)
    row_index, token_index = np.concatenate(rows), np.concatenate(places)
    rollout = np.concatenate([sample.logprobs[sample.loss_mask] for sample in samples])
    counts = [len(place) for place in places]
    advantages = np.concatenate([sample.trained_advantages for sample in samples])
    weight = np.repeat(np.array(weights, dtype=np.float32), counts)

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    experts, routed = _routing(samples, longest)
    return MicroBatch(
        samples=order,
        rollout_ids=tuple(sample.rollout_id for sample in samples),
        lengths=tuple(len(sample.tokens) for sample in samples),
        input_ids=tensor(ids),
        shared=shared,
        rows=tensor(row_index),
        positions=tensor(token_index - 1),
        targets=tensor(ids[row_index, token_index]),
        rollout_logprobs=tensor(rollout.astype(np.float32)),
        old_logprobs=_chosen([sample.old_logprobs for sample in samples], samples, device),
        reference_logprobs=_chosen(
            [sample.reference_logprobs for sample in samples], samples, device
        ),
        teacher_logprobs=_chosen([sample.teacher_logprobs for sample in samples], samples, device),
        advantages=tensor(advantages),
        weights=tensor(weight),
        experts=None if experts is None else tensor(experts),
        routed=None if routed is None else tensor(routed),
    )


def _chosen(
    logprobs: Sequence[LogprobArray | None], samples: Sequence[Sample], device: torch.device
) -> Tensor | None:
    """Return the logprobs of the trained tokens; None if a sample has none."""
    pairs = zip(logprobs, samples, strict=True)
    parts = [each[sample.loss_mask] for each, sample in pairs if each is not None]
    if len(parts) < len(samples):
        return None
    return torch.from_numpy(np.concatenate(parts)).to(device)


def _routing(
    samples: list[Sample], longest: int
) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    """Pad the samples' routing; a sample without any is routed natively among others."""
    known = next((sample.routing for sample in samples if sample.routing is not None), None)
    if known is None:
        return None, None
    experts = np.zeros((len(samples), longest, *known.experts.shape[1:]), np.int16)
    routed = np.zeros((len(samples), longest), bool)
    for row, sample in enumerate(samples):
        if sample.routing is not None:
            experts[row, : len(sample.tokens)] = sample.routing.experts
            routed[row, : len(sample.tokens)] = sample.routing.valid
    return experts, routed
