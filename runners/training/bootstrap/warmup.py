"""The supervised warm-up of the tiny policy: first copying, then the use of the tools."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Qwen3MoeForCausalLM

from runners.training.bootstrap.demonstrations import Demonstration
from runners.training.bootstrap.muon import Muon
from runners.training.bootstrap.shared_prompt import compute_hidden_states
from runners.trajectory.prefix import common_prefix_length

MATRIX_RATE = 0.02
OTHER_RATE = 3e-3
RAMP_STEPS = 20
"""Steps over which the learning rates rise linearly."""
EPISODES = 16
"""Demonstrations per step."""
CONTEXT_WEIGHT = 0.1
"""Weight of a token that the policy reads; one that it samples weighs 1."""
READINGS = 16
"""Modules read per step."""
LISTS = 64
"""Copying exercises per step."""


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
    chains: Sequence[Sequence[Demonstration]],
    readings: Sequence[Demonstration],
    *,
    steps: int,
    seed: int,
    report: Callable[[int], None],
) -> FinalLoss:
    """Imitate demonstrations, which are given by chain of the episode.

    Demonstrations of the same chain begin with the same prompt, which is run once per step. Half of
    a step's demonstrations are of the first chain, the one with the fix. ``readings``: modules with
    their evidence, then the right statement, which teaches copying the right word to its place.
    """
    rng = random.Random(seed)
    optimizer = Muon(network, matrix_rate=MATRIX_RATE, other_rate=OTHER_RATE)
    samplers = [
        _Sampler(chain, share, rng)
        for chain, share in zip(chains, _shares(len(chains)), strict=True)
    ]
    recent: list[FinalLoss] = []
    for step in range(steps):
        for sampler in samplers:
            figures, loss = _compute_loss(network, sampler.draw(), sampler.prefix)
            (loss * (sampler.share / EPISODES)).backward()  # type: ignore[no-untyped-call]
            recent = [*recent[-19:], figures]
        _, loss = _compute_loss(network, rng.sample(readings, READINGS), prefix=0)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        decay = 0.01 + 0.5 * (1.0 + math.cos(math.pi * step / steps))
        optimizer.step(min(1.0, (step + 1) / RAMP_STEPS) * decay)
        report(step + 1)
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
    """Draws demonstrations of one chain, each once per pass, in a new order per pass."""

    def __init__(
        self, demonstrations: Sequence[Demonstration], share: int, rng: random.Random
    ) -> None:
        self.share = share
        """Demonstrations drawn per step."""
        self.prefix = common_prefix_length(*(shown.tokens for shown in demonstrations))
        self._demonstrations = demonstrations
        self._rng = rng
        self._order: list[int] = []

    def draw(self) -> list[Demonstration]:
        """Return the demonstrations of the next step."""
        if len(self._order) < self.share:
            count = len(self._demonstrations)
            self._order = self._rng.sample(range(count), count)
        return [self._demonstrations[self._order.pop()] for _ in range(self.share)]


def _compute_loss(
    network: Qwen3MoeForCausalLM, episodes: Sequence[Demonstration], prefix: int
) -> tuple[FinalLoss, Tensor]:
    """Return the figures of some demonstrations, and the weighted mean of their tokens' negative
    log-likelihoods; the first ``prefix`` tokens are the same in all and are not predicted.
    """
    longest = max(len(episode.tokens) for episode in episodes)
    tokens = torch.zeros(len(episodes), longest, dtype=torch.int64)
    weights = torch.zeros(len(episodes), longest)
    for row, episode in enumerate(episodes):
        size = len(episode.tokens)
        tokens[row, :size] = torch.from_numpy(episode.tokens)
        weights[row, :size] = torch.where(torch.from_numpy(episode.sampled), 1.0, CONTEXT_WEIGHT)
    targets, weights = tokens[:, prefix + 1 :], weights[:, prefix + 1 :]
    real = weights > 0
    hidden = compute_hidden_states(network.model, tokens, prefix)[:, :-1]
    logits = network.lm_head(hidden[real])
    losses = nn.functional.cross_entropy(logits, targets[real], reduction="none")
    sampled = weights[real] == 1
    figures = FinalLoss(losses[sampled].mean().item(), losses[~sampled].mean().item())
    return figures, (losses * weights[real]).sum() / weights.sum()
