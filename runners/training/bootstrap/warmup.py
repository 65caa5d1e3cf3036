"""The supervised warm-up: first how to copy, then how the tools are used."""

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
from runners.training.prefix import hidden_states
from runners.trajectory.prefix import common_prefix_length

MATRIX_RATE = 0.02
OTHER_RATE = 3e-3
RAMP_STEPS = 20
EPISODES = 16
"""Per step."""
CONTEXT_WEIGHT = 0.1
"""Of a token that the policy reads; one that it samples weighs 1."""
READINGS = 16
"""Modules read per step."""
LISTS = 64
"""Copying exercises per step."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Mean negative log-likelihood at the end of the warm-up, nats per token."""

    sampled: float
    read: float


def copying(
    network: Qwen3MoeForCausalLM, *, steps: int, seed: int, done: Callable[[int], None]
) -> None:
    """Practise copying: a list of random pairs, then the same pairs in another order.

    The second token of a pair is predictable, the second time, from the first one's earlier place.
    All tokens take part, so names that no demonstration has can be copied too.
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
        done(step + 1)


def imitate(
    network: Qwen3MoeForCausalLM,
    lines: Sequence[Sequence[Demonstration]],
    readings: Sequence[Demonstration],
    *,
    steps: int,
    seed: int,
    done: Callable[[int], None],
) -> Fit:
    """Imitate demonstrations, given by line of the episode; those of a line begin with the same
    prompt, run once per step. Half of what is imitated is the first line, the one with the fix.

    Beside them ``readings``: right code, which teaches what a docstring means. With that and a
    share of right fixes above chance, a warmed-up policy prefers the right fix: decoded greedily it
    solves more than it does when sampled.
    """
    rng = random.Random(seed)
    optimizer = Muon(network, matrix_rate=MATRIX_RATE, other_rate=OTHER_RATE)
    decks = [
        _Deck(line, share, rng) for line, share in zip(lines, _shares(len(lines)), strict=True)
    ]
    fits: list[Fit] = []
    for step in range(steps):
        for deck in decks:
            fit, loss = _loss(network, deck.deal(), deck.prefix)
            (loss * (deck.share / EPISODES)).backward()  # type: ignore[no-untyped-call]
            fits = [*fits[-19:], fit]
        _, loss = _loss(network, rng.sample(readings, READINGS), prefix=0)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        decay = 0.01 + 0.5 * (1.0 + math.cos(math.pi * step / steps))
        optimizer.step(min(1.0, (step + 1) / RAMP_STEPS) * decay)
        done(step + 1)
    count = len(fits)
    return Fit(sum(fit.sampled for fit in fits) / count, sum(fit.read for fit in fits) / count)


def _shares(lines: int) -> list[int]:
    """Return how many episodes of a step show each line: half the first, the rest alike."""
    if lines == 1:
        return [EPISODES]
    rest = EPISODES // 2
    return [EPISODES - rest, *(rest // (lines - 1) for _ in range(lines - 1))]


class _Deck:
    """Demonstrations of one line, dealt in a fresh shuffle per pass."""

    def __init__(
        self, demonstrations: Sequence[Demonstration], share: int, rng: random.Random
    ) -> None:
        self.share = share
        """Dealt per step."""
        self.prefix = common_prefix_length(*(shown.tokens for shown in demonstrations))
        self._demonstrations = demonstrations
        self._rng = rng
        self._order: list[int] = []

    def deal(self) -> list[Demonstration]:
        """Return the next ones."""
        if len(self._order) < self.share:
            count = len(self._demonstrations)
            self._order = self._rng.sample(range(count), count)
        return [self._demonstrations[self._order.pop()] for _ in range(self.share)]


def _loss(
    network: Qwen3MoeForCausalLM, episodes: Sequence[Demonstration], prefix: int
) -> tuple[Fit, Tensor]:
    longest = max(len(episode.tokens) for episode in episodes)
    tokens = torch.zeros(len(episodes), longest, dtype=torch.int64)
    weights = torch.zeros(len(episodes), longest)
    for row, episode in enumerate(episodes):
        size = len(episode.tokens)
        tokens[row, :size] = torch.from_numpy(episode.tokens)
        weights[row, :size] = torch.where(torch.from_numpy(episode.sampled), 1.0, CONTEXT_WEIGHT)
    targets, weights = tokens[:, prefix + 1 :], weights[:, prefix + 1 :]
    real = weights > 0
    hidden = hidden_states(network.model, tokens, prefix)[:, :-1]
    logits = network.lm_head(hidden[real])
    losses = nn.functional.cross_entropy(logits, targets[real], reduction="none")
    sampled = weights[real] == 1
    fit = Fit(losses[sampled].mean().item(), losses[~sampled].mean().item())
    return fit, (losses * weights[real]).sum() / weights.sum()
