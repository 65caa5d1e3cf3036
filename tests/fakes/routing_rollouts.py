"""Rollouts with the routing of the policy that sampled them."""

from __future__ import annotations

import numpy as np
import torch

from runners.records.routing import Routing
from runners.training.local import LocalTrainer
from runners.training.sample import Sample
from tests.fakes.local_trainer import VOCAB, logprobs


def chosen(trainer: LocalTrainer, tokens: np.ndarray) -> np.ndarray:
    """Return what a policy's routers choose for a sequence, [T, layers, K]."""
    found: dict[int, torch.Tensor] = {}
    hooks = [
        layer.mlp.gate.register_forward_hook(
            lambda _module, _inputs, output, index=index: found.__setitem__(index, output[2])
        )
        for index, layer in enumerate(trainer.model.model.layers)  # type: ignore[union-attr, arg-type]
    ]
    with torch.no_grad():
        trainer.model(torch.from_numpy(tokens.astype(np.int64))[None])
    for hook in hooks:
        hook.remove()
    return np.stack([found[0].numpy(), found[1].numpy()], axis=1).astype(np.uint8)


def rollouts(
    engine: LocalTrainer, count: int = 8, *, prompt_tokens: int = 12, seed: int = 1
) -> list[list[Sample]]:
    """Rollouts of 20 tokens sampled from a policy, with its logprobs and its routing; two share a
    prompt.
    """
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        if index % 2 == 0:
            prompt = rng.integers(0, VOCAB, prompt_tokens)
        tokens = np.concatenate([prompt, rng.integers(0, VOCAB, 20)]).astype(np.int32)
        mask = np.arange(len(tokens)) >= prompt_tokens
        routing = Routing(chosen(engine, tokens), np.arange(len(tokens)) < len(tokens) - 1)
        sampled = logprobs(engine, tokens) * mask
        worth = 1.0 if index % 2 else -1.0
        made.append([Sample(f"r{index}", tokens, mask, sampled, worth, routing=routing)])
    return made
