"""Gradients by transformers' own code, to compare those of the local trainer with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from runners.training.sample import Sample
from tests.fakes.policies import VOCAB, load_plain

TEMPERATURE = 0.7
PROMPT = 73


def make_rollouts(count: int = 5) -> list[list[Sample]]:
    """Rollouts behind one prompt, of several lengths, the last without one; ratios are not 1."""
    rng = np.random.default_rng(3)
    prompt = rng.integers(0, VOCAB, PROMPT)
    rollouts = []
    for index in range(count):
        own = rng.integers(0, VOCAB, 6 + 5 * index)
        whole = [prompt, own] if index < count - 1 else [own]
        tokens = np.concatenate(whole).astype(np.int32)
        mask = np.arange(len(tokens)) >= len(tokens) - len(own) + 2
        mask[-2] = False
        logprobs = np.where(mask, -4.5, 0).astype(np.float32)
        rollouts.append([Sample(f"r{index}", tokens, mask, logprobs, (-1.0) ** index * 0.7)])
    return rollouts


def compute_plainly(
    weights: Path, rollouts: list[list[Sample]], dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Return the gradients of REINFORCE by transformers' own code, one sample at a time."""
    policy: Any = load_plain(weights).to(dtype)
    loss = torch.zeros(())
    for (sample,) in rollouts:
        tokens = torch.from_numpy(sample.tokens.astype(np.int64))
        logits = policy(input_ids=tokens[None], use_cache=False).logits[0].float()
        logprobs = (logits / TEMPERATURE).log_softmax(dim=-1)[:-1].gather(1, tokens[1:, None])[:, 0]
        chosen = logprobs[torch.from_numpy(sample.loss_mask[1:])]
        loss = loss - sample.advantage * chosen.mean() / len(rollouts)
    torch.autograd.backward(loss)
    return {n: p.grad for n, p in policy.named_parameters() if p.grad is not None}


def find_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the norm of the difference of two gradients, relative to the second's."""
    squares = [(one[name].float() - other[name]).square().sum() for name in other]
    whole = [each.square().sum() for each in other.values()]
    return float((torch.stack(squares).sum() / torch.stack(whole).sum()).sqrt())
