"""The supervised warm-up: first how to copy, then how the tools are used."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Qwen3MoeForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer

from runners.training.bootstrap.demonstrations import Demonstration
from runners.training.bootstrap.muon import Muon

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
    demonstrations: Sequence[Demonstration],
    readings: Sequence[Demonstration],
    *,
    prefix: int,
    steps: int,
    seed: int,
    done: Callable[[int], None],
) -> Fit:
    """Imitate demonstrations; all begin with the same ``prefix`` tokens, run once per step.

    Beside them ``readings``: right code, which teaches what a docstring means. With that and a
    share of right fixes above chance, a warmed-up policy prefers the right fix: decoded greedily it
    solves more than it does when sampled.
    """
    rng = random.Random(seed)
    optimizer = Muon(network, matrix_rate=MATRIX_RATE, other_rate=OTHER_RATE)
    order: list[int] = []
    fits: list[Fit] = []
    for step in range(steps):
        if len(order) < EPISODES:
            order = rng.sample(range(len(demonstrations)), len(demonstrations))
        episodes = [demonstrations[order.pop()] for _ in range(EPISODES)]
        fit, loss = _loss(network, episodes, prefix)
        loss.backward()  # type: ignore[no-untyped-call]
        _, loss = _loss(network, rng.sample(readings, READINGS), prefix=0)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        decay = 0.01 + 0.5 * (1.0 + math.cos(math.pi * step / steps))
        optimizer.step(min(1.0, (step + 1) / RAMP_STEPS) * decay)
        fits = [*fits[-19:], fit]
        done(step + 1)
    count = len(fits)
    return Fit(sum(fit.sampled for fit in fits) / count, sum(fit.read for fit in fits) / count)


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
    hidden = _hidden_after(network, tokens, prefix)[:, :-1]
    logits = network.lm_head(hidden[real])
    losses = nn.functional.cross_entropy(logits, targets[real], reduction="none")
    sampled = weights[real] == 1
    fit = Fit(losses[sampled].mean().item(), losses[~sampled].mean().item())
    return fit, (losses * weights[real]).sum() / weights.sum()


def _hidden_after(network: Qwen3MoeForCausalLM, tokens: Tensor, prefix: int) -> Tensor:
    """Hidden states from position ``prefix`` on, of rows that share all tokens before it."""
    if prefix == 0:
        states: Tensor = network.model(input_ids=tokens, use_cache=False).last_hidden_state
        return states
    cache = DynamicCache(config=network.config)
    network.model(input_ids=tokens[:1, :prefix], past_key_values=cache, use_cache=True)
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        assert layer.keys is not None
        assert layer.values is not None
        layer.keys = layer.keys.expand(len(tokens), -1, -1, -1)
        layer.values = layer.values.expand(len(tokens), -1, -1, -1)
    output = network.model(input_ids=tokens[:, prefix:], past_key_values=cache, use_cache=True)
    hidden: Tensor = output.last_hidden_state
    return hidden
