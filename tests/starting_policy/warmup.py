"""The supervised warm-up of the tiny policy: first copying, then the use of the tools."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen3MoeForCausalLM

from runners.records.graph import common_prefix_length
from runners.training.hidden_states import compute_hidden_states
from runners.training.micro_batches import make_micro_batches
from runners.training.recompute import compute_chosen_logprobs
from runners.training.sample import Sample
from runners.training.tree.layers import disable_trees, enable_trees
from tests.starting_policy.demonstrations import Demonstration
from tests.starting_policy.muon import Muon

MATRIX_RATE = 0.02
OTHER_RATE = 3e-3
RAMP_STEPS = 20
"""Steps over which the learning rates rise linearly."""
EPISODES = 8
"""Demonstrations per scenario and step."""
CONTEXT_WEIGHT = 0.1
"""Weight of a token that the policy reads; one that it samples weighs 1."""
READINGS = 8
"""Modules read per scenario and step."""
LISTS = 64
"""Copying exercises per step."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """The demonstrations of a scenario."""

    chains: Sequence[Sequence[Demonstration]]
    """By chain of the episode; the one with the fix comes first."""
    readings: Sequence[Demonstration]
    """Modules with their evidence, then the right statement."""


@dataclass(frozen=True, slots=True)
class FinalLoss:
    """Mean negative log-likelihood at the end of the warm-up, nats per token."""

    sampled: float
    """Over tokens that the policy samples."""
    read: float
    """Over tokens that it reads."""


def train_copying(
    network: Qwen3MoeForCausalLM, *, steps: int, seed: int, report: Callable[[int], None]
) -> None:
    """Train copying: a list of random pairs of tokens, then the same pairs in another order.

    When a pair comes again, its second token can be predicted from its first appearance; the loss
    is the cross-entropy of those tokens alone. All tokens of the vocabulary take part, so names
    that no demonstration has can be copied too.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = Muon(network, matrix_rate=MATRIX_RATE, other_rate=OTHER_RATE)
    vocabulary = network.config.vocab_size
    for step in range(steps):
        length = int(torch.randint(2, 11, (), generator=generator))
        first = torch.rand(LISTS, vocabulary, generator=generator).argsort(dim=1)[:, :length]
        second = torch.randint(0, vocabulary, (LISTS, length), generator=generator)
        halves = []
        for _ in range(2):
            order = torch.rand(LISTS, length, generator=generator).argsort(dim=1)
            halves.append(
                torch.stack([first.gather(1, order), second.gather(1, order)], dim=2).flatten(1)
            )
        tokens = torch.cat(halves, dim=1)
        hidden = network.model(input_ids=tokens, use_cache=False).last_hidden_state
        predicted = network.lm_head(hidden[:, 2 * length :: 2]).flatten(0, 1)
        loss = nn.functional.cross_entropy(predicted, tokens[:, 2 * length + 1 :: 2].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step(min(1.0, (step + 1) / RAMP_STEPS))
        report(step + 1)


def imitate(
    network: Qwen3MoeForCausalLM,
    lessons: Sequence[Lesson],
    *,
    steps: int,
    seed: int,
    report: Callable[[int], None],
) -> FinalLoss:
    """Imitate demonstrations, as many of each scenario in every step.

    Half of a scenario's are of the first chain, the one with the fix; its readings teach copying
    the right word to its place. All of a step is one prefix tree: demonstrations of a chain begin
    with one prompt.
    """
    rng = random.Random(seed)
    optimizer = Muon(network, matrix_rate=MATRIX_RATE, other_rate=OTHER_RATE)
    samplers = []
    for lesson in lessons:
        counts = _shares(len(lesson.chains))
        for chain, count in zip(lesson.chains, counts, strict=True):
            samplers.append(_Sampler(chain, count, count / sum(counts) / len(lessons), rng))
        samplers.append(_Sampler(lesson.readings, READINGS, 1.0 / len(lessons), rng))
    recent: list[FinalLoss] = []
    enable_trees(network)
    for step in range(steps):
        figures, loss = compute_loss(network, [(each.draw(), each.weight) for each in samplers])
        loss.backward()  # type: ignore[no-untyped-call]
        recent = [*recent[-9:], figures]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        decay = 0.01 + 0.5 * (1.0 + math.cos(math.pi * step / steps))
        optimizer.step(min(1.0, (step + 1) / RAMP_STEPS) * decay)
        report(step + 1)
    disable_trees(network)
    count = len(recent)
    return FinalLoss(
        sum(each.sampled for each in recent) / count, sum(each.read for each in recent) / count
    )


def _shares(chains: int) -> list[int]:
    """Return each chain's number of demonstrations per step: half for the first, the rest equal."""
    if chains == 1:
        return [EPISODES]
    rest = EPISODES // 2
    return [EPISODES - rest, *(rest // (chains - 1) for _ in range(chains - 1))]


class _Sampler:
    """Draws demonstrations of one kind, each once per pass, in a new order per pass."""

    def __init__(
        self, shown: Sequence[Demonstration], count: int, weight: float, rng: random.Random
    ) -> None:
        self.weight = weight
        """Weight of a draw in the loss."""
        prefix = common_prefix_length(*(each.tokens for each in shown))
        self._samples = [make_sample(each, prefix) for each in shown]
        self._count = count
        self._rng = rng
        self._order: list[int] = []

    def draw(self) -> list[Sample]:
        """Return the samples of the next step."""
        if len(self._order) < self._count:
            size = len(self._samples)
            self._order = self._rng.sample(range(size), size)
        return [self._samples[self._order.pop()] for _ in range(self._count)]


def make_sample(shown: Demonstration, prefix: int) -> Sample:
    """Return a demonstration as a sample whose advantages are its tokens' weights in the loss; all
    are predicted but the first ``prefix`` and the one after them.
    """
    weights = np.where(shown.sampled, 1.0, CONTEXT_WEIGHT).astype(np.float32)
    return Sample(
        rollout_id="",
        tokens=shown.tokens,
        loss_mask=np.arange(len(shown.tokens)) > prefix,
        logprobs=np.zeros_like(weights),
        advantage=1.0,
        token_advantages=weights,
    )


def compute_loss(
    network: Qwen3MoeForCausalLM, draws: Sequence[tuple[Sequence[Sample], float]]
) -> tuple[FinalLoss, Tensor]:
    """Return the figures of some draws, and ``Σ weight · mean`` over them: the mean of a draw is
    that of its tokens' negative log-likelihoods, by the tokens' weights.

    ``network``: one that can run prefix trees.
    """
    samples = [sample for drawn, _ in draws for sample in drawn]
    weights: list[float] = []
    for drawn, weight in draws:
        total = sum(float(sample.trained_advantages.sum()) for sample in drawn)
        weights += [weight / total] * len(drawn)
    (batch,) = make_micro_batches(
        samples,
        weights,
        tokens_per_microbatch=sum(len(sample.tokens) for sample in samples),
        device=network.device,
    )
    hidden = compute_hidden_states(network.model, batch).index_select(0, batch.predictors)
    losses = -compute_chosen_logprobs(
        network.lm_head, hidden, batch.predicted_by, batch.targets, 1.0, chunked=False
    )[:, 0]
    sampled = batch.advantages == 1.0
    figures = FinalLoss(losses[sampled].mean().item(), losses[~sampled].mean().item())
    return figures, (losses * batch.advantages * batch.weights).sum()
