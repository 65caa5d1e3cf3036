"""Settings of routing replay, and samples whose routing is not their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from conf.sections.training import RoutingRolloutConfig
from runners.records.routing import RoutingShape
from runners.training.sample import Sample
from tests.fakes.local_trainer import make_trainer

SHAPE = RoutingShape(layers=2, top_k=2, experts=8, routed=(0, 1))


def r3(**changes: object) -> RoutingRolloutConfig:
    """R3's settings."""
    settings = {"on_fault": "stop", "shadow_every": 1, "alarm_disagreement": 0.05}
    given = {"kind": "rollout", "keep_steps": None, **settings, **changes}
    return RoutingRolloutConfig.model_validate(given)


def write_noisy_routers(weights: Path, directory: Path) -> None:
    """Write a policy with other router weights: an engine that chooses other experts."""
    trainer = make_trainer(weights)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in trainer.model.named_parameters():
            if "gate.weight" in name:
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(0.1 * weight.std() * noise)
    trainer.model.save_pretrained(directory)  # type: ignore[operator]


FAULTS = (
    "shifted by a token", "shifted from the first sampled token", "another turn's",
    "one wrong expert", "random in 10 % of the samples",
)  # fmt: skip
"""Possible routing that is not the sample's own: only the comparison with training can tell."""


def inject(fault: str, samples: Sequence[Sample], seed: int, experts: int) -> list[Sample]:
    """Return a step's samples with one of FAULTS; ``experts``: of the policy."""
    rng = np.random.default_rng(seed)
    if not fault.startswith("random"):
        return [
            corrupt(fault, sample, samples[at - 1], experts=experts, seed=seed)
            for at, sample in enumerate(samples)
        ]
    hit = rng.permutation(len(samples))[: max(1, len(samples) // 10)].tolist()
    return [
        corrupt("random", sample, sample, experts=experts, seed=seed) if at in hit else sample
        for at, sample in enumerate(samples)
    ]


def corrupt(
    kind: str, sample: Sample, other: Sample, *, experts: int = SHAPE.experts, seed: int = 0
) -> Sample:
    """Return the sample with routing that is not its own, of a policy with so many experts."""
    assert sample.routing is not None
    assert other.routing is not None
    own, first = sample.routing.experts, int(np.argmax(sample.loss_mask))
    rng, changed = np.random.default_rng(seed), own.copy()
    order = rng.random((*own.shape[:2], experts)).argsort(-1)
    match kind:
        case "shifted by a token":
            changed[:] = np.roll(own, 1, axis=0)
        case "shifted from the first sampled token":
            changed[first:] = np.roll(own[first:], 1, axis=0)
        case "shifted by a layer":
            changed[:] = np.roll(own, 1, axis=1)
        case "one wrong expert":
            chosen = (order[..., None] == own[:, :, None, :]).any(-1)
            unchosen = np.take_along_axis(order, chosen.argsort(-1, kind="stable"), -1)
            changed[..., 0] = unchosen[..., 0]
        case "zeros":
            changed[:] = 0
        case "random":
            changed[:] = order[..., : own.shape[2]]
        case "another turn's":
            changed[:] = np.resize(other.routing.experts, own.shape)
        case _:
            raise ValueError(kind)
    return replace(sample, routing=replace(sample.routing, experts=changed))
