"""A local trainer of a random tiny policy, and rollouts to train it on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from conf.sections.training import LocalTrainerConfig, RoutingReplayConfig
from runners.training.local import NATIVE, LocalTrainer
from runners.training.sample import Sample

VOCAB = 96
NO_CORRECTION: dict[str, Any] = {
    **{"truncate": "none", "cap": 2.0, "floor": 0.0, "mask_outside": None},
    **{"reject_outside": None, "reject_negative_above": None},
}

NO_LORA: dict[str, Any] = {"rank": 0, "alpha": 32, "targets": ("q_proj", "v_proj", "o_proj")}


def make_trainer(
    weights: Path,
    *,
    seed: int = 0,
    routing: RoutingReplayConfig = NATIVE,
    merges: bool = True,
    **changes: object,
) -> LocalTrainer:
    """A trainer with the laptop's settings; ``merges``: as ``merges_adapters``."""
    settings: dict[str, Any] = {
        "kind": "local", "device": "cpu", "devices": 1, "shard": "none",
        "learning_rate": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.0, "clip_low": 0.2,
        "clip_high": 0.28, "loss": "ppo", "clip_dual": None, "accept_reward": None,
        "credit": "rollout", "aggregation": "auto", "aggregation_tokens": 64,
        "grad_clip": 1.0, "minibatches": 1, "epochs": 1,
        "tokens_per_microbatch": 512, "normalize_std": True, "min_group": 2, "threads": 1,
        "train_unfinished": True, "recompute": "auto", "precision": "float32",
        "advantage": "grpo",
        "correction": NO_CORRECTION, "entropy_bonus": 0.0,
        "lora": NO_LORA,
        "kl": {"weight": 0.0, "estimator": "k3", "place": "loss"},
        "warmup_steps": 0, "decay": "constant", "decay_steps": 10, "min_learning_rate": 0.0,
        "distill": {"url": None, "weight": 1.0, "alone": False, "deadline_s": 600.0},
        "sft": {"path": None, "steps": 0, "batch": 32},
    } | changes  # fmt: skip
    settings["correction"] = {**NO_CORRECTION, **settings["correction"]}
    settings["lora"] = {**NO_LORA, **settings["lora"]}
    return LocalTrainer(
        LocalTrainerConfig.model_validate(settings),
        weights=weights,
        temperature=0.7,
        seed=seed,
        routing=routing,
        merges_adapters=merges,
    )


def logprobs(trainer: LocalTrainer, tokens: np.ndarray) -> np.ndarray:
    """Logprob of each token given those before it, after temperature; 0 for the first."""
    with torch.no_grad():
        logits = (
            trainer.model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
            / trainer.temperature
        )
    chosen = logits.log_softmax(-1)[:-1].gather(
        1, torch.from_numpy(tokens[1:].astype(np.int64))[:, None]
    )[:, 0]
    return np.concatenate([[0.0], chosen.numpy()]).astype(np.float32)


def make_rollouts(
    trainer: LocalTrainer, count: int, *, advantage: float | None = None
) -> list[list[Sample]]:
    """On-policy rollouts of one sample of random tokens, half of them good and half bad."""
    rng = np.random.default_rng(1)
    rollouts = []
    for index in range(count):
        tokens = rng.integers(0, VOCAB, int(rng.integers(8, 24))).astype(np.int32)
        mask = np.zeros(len(tokens), dtype=bool)
        mask[len(tokens) // 2 :] = True
        worth = advantage if advantage is not None else (1.0 if index % 2 else -1.0)
        sampled = logprobs(trainer, tokens) * mask
        rollouts.append([Sample(f"r{index}", tokens, mask, sampled, worth)])
    return rollouts


def make_examples(number: int = 6) -> list[Sample]:
    """Examples of random tokens, whose replies begin at token 2 or 3."""
    random = np.random.default_rng(0)
    lengths = range(4, 4 + number)
    return [
        Sample(
            f"example-{length}",
            random.integers(0, VOCAB, length).astype(np.int32),
            np.arange(length) >= 2 + length % 2,
            np.zeros(length, np.float32),
            advantage=1.0,
        )
        for length in lengths
    ]
