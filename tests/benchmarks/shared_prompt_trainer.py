"""The way before prefix trees, to compare with: padded rows, whose common beginning is run once.

Rows that begin with the same 64 tokens are batched together. What all of them share before their
first trained prediction is run as a row of its own, and its keys and values serve the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from torch import Tensor

from runners.records.prefix import common_prefix_length
from runners.training.hidden_states import ForwardScope
from runners.training.local import LocalTrainer
from runners.training.micro_batches import MicroBatch, make_micro_batches
from runners.training.policy import find_decoder
from runners.training.recompute import Entropy, compute_chosen_logprobs
from runners.training.sample import Sample
from tests.benchmarks.shared_prompt import compute_hidden_states

OPENING = 64


class SharedPromptTrainer(LocalTrainer):
    """A trainer whose rows share one beginning, without routing replay."""

    shared = 0
    """Leading tokens that the rows of the current micro-batch share."""
    run_positions = 0
    """Positions that were run, padding included."""

    def _batches(
        self, samples: Sequence[Sample], weights: Sequence[float] | None = None, policy: Any = None
    ) -> Iterator[MicroBatch]:
        given = weights or [0.0] * len(samples)
        order = sorted(range(len(samples)), key=_place(samples))
        for _, group in groupby(order, lambda index: samples[index].tokens[:OPENING].tobytes()):
            members = list(group)
            shared = _find_shared([samples[index] for index in members])
            while members:
                longest = len(samples[members[0]].tokens)
                room = self.config.tokens_per_microbatch - shared
                size = max(1, room // (longest - shared))
                chosen, members = members[:size], members[size:]
                (batch,) = make_micro_batches(
                    [samples[index] for index in chosen], [given[index] for index in chosen],
                    tokens_per_microbatch=1 << 40, device=self.device, tree=False,
                )  # fmt: skip
                own = shared if len(chosen) > 1 else 0
                rows, width = batch.input_ids.shape
                self.shared = own
                self.run_positions += own + rows * (width - own)
                yield replace(batch, samples=tuple(chosen[index] for index in batch.samples))

    def _logprobs(
        self,
        batch: MicroBatch,
        scope: ForwardScope = nullcontext,
        policy: Any = None,
        entropy: Entropy = "none",
    ) -> Tensor:
        computed, shared = policy or self.model, self.shared
        hidden = compute_hidden_states(find_decoder(computed), batch.input_ids, shared)
        width = batch.input_ids.shape[1]
        rows, columns = batch.predictors // width, batch.predictors % width
        return compute_chosen_logprobs(
            self.weights.make_head(computed), hidden[rows, columns - shared], batch.predicted_by,
            batch.targets, self.temperature, chunked=self.recompute, entropy=entropy,
        )  # fmt: skip


def _place(samples: Sequence[Sample]) -> Callable[[int], tuple[bytes, int, str, bytes]]:
    def place(index: int) -> tuple[bytes, int, str, bytes]:
        sample = samples[index]
        opening = sample.tokens[:OPENING].tobytes()
        return opening, -len(sample.tokens), sample.rollout_id, sample.tokens.tobytes()

    return place


def _find_shared(samples: Sequence[Sample]) -> int:
    """Return how many leading tokens all samples share before their first trained prediction."""
    first_trained = min(int(np.argmax(sample.loss_mask)) for sample in samples)
    return max(0, min(first_trained - 1, common_prefix_length(*(s.tokens for s in samples))))
