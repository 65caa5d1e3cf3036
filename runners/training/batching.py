"""From samples to padded micro-batches.

Right padding under a causal mask needs no attention mask: a padded position lies after every real
one of its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runners.training.sample import Sample


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of tokens, and the flat list of predictions that are trained."""

    input_ids: Tensor
    """int64 [B, T], right-padded with 0."""
    rows: Tensor
    """int64 [n]: row of each trained prediction."""
    positions: Tensor
    """int64 [n]: position whose output predicts the trained token (token index − 1)."""
    targets: Tensor
    """int64 [n]: the trained token."""
    behaviour_logprobs: Tensor
    """float32 [n]: logprob at sampling time."""
    advantages: Tensor
    """float32 [n]"""
    weights: Tensor
    """float32 [n]: weight of the token in the loss."""


def split_by_rollout(
    samples: Sequence[Sample], parts: int, generator: torch.Generator
) -> list[list[Sample]]:
    """Shuffle rollouts and deal them into ``parts`` lists; the samples of one rollout stay
    together.
    """
    rollouts: dict[str, list[Sample]] = {}
    for sample in samples:
        rollouts.setdefault(sample.rollout_id, []).append(sample)
    order = torch.randperm(len(rollouts), generator=generator).tolist()
    members = list(rollouts.values())
    dealt = [
        [sample for index in order[part::parts] for sample in members[index]]
        for part in range(parts)
    ]
    return [part for part in dealt if part]


def token_weights(samples: Sequence[Sample]) -> list[float]:
    """Weight of one trained token of each sample: 1 / (number of rollouts · trained tokens of its
    rollout).
    """
    tokens: dict[str, int] = {}
    for sample in samples:
        tokens[sample.rollout_id] = tokens.get(sample.rollout_id, 0) + int(sample.loss_mask.sum())
    return [1.0 / (len(tokens) * max(1, tokens[sample.rollout_id])) for sample in samples]


def micro_batches(
    samples: Sequence[Sample],
    weights: Sequence[float],
    *,
    tokens_per_microbatch: int,
    device: torch.device,
) -> Iterator[MicroBatch]:
    """Yield padded micro-batches of at most ``tokens_per_microbatch`` tokens (one longer row stands
    alone).

    Rows are grouped by length so that little is padding.
    """
    order = sorted(range(len(samples)), key=lambda index: len(samples[index].tokens), reverse=True)
    start = 0
    while start < len(order):
        longest = len(samples[order[start]].tokens)
        size = max(1, tokens_per_microbatch // longest)
        chosen = order[start : start + size]
        yield _pad(
            [samples[index] for index in chosen], [weights[index] for index in chosen], device
        )
        start += size


def _pad(samples: list[Sample], weights: list[float], device: torch.device) -> MicroBatch:
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
    behaviour = np.concatenate([sample.logprobs[sample.loss_mask] for sample in samples])
    counts = [len(place) for place in places]
    advantages = np.repeat(
        np.array([sample.advantage for sample in samples], dtype=np.float32), counts
    )
    weight = np.repeat(np.array(weights, dtype=np.float32), counts)

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return MicroBatch(
        input_ids=tensor(ids),
        rows=tensor(row_index),
        positions=tensor(token_index - 1),
        targets=tensor(ids[row_index, token_index]),
        behaviour_logprobs=tensor(behaviour.astype(np.float32)),
        advantages=tensor(advantages),
        weights=tensor(weight),
    )
