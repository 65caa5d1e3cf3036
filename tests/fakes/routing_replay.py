"""Settings of routing replay, and samples whose routing is not their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conf.sections.training import RoutingRolloutConfig
from runners.training.sample import Sample
from runners.trajectory.routing import RoutingShape

SHAPE = RoutingShape(layers=2, top_k=2, experts=8, routed=(0, 1))


def r3(**changes: object) -> RoutingRolloutConfig:
    """R3's settings."""
    settings = {"on_fault": "stop", "shadow_every": 1, "alarm_disagreement": 0.5, **changes}
    return RoutingRolloutConfig.model_validate({"kind": "rollout", **settings})


def corrupt(kind: str, sample: Sample, other: Sample) -> Sample:
    """Return the sample with routing that is not its own."""
    assert sample.routing is not None
    assert other.routing is not None
    own = sample.routing.experts
    rng = np.random.default_rng(0)
    experts = {
        "shifted by a token": np.roll(own, 1, axis=0),
        "shifted by a layer": np.roll(own, 1, axis=1),
        "zeros": np.zeros_like(own),
        "random": rng.random((*own.shape[:2], SHAPE.experts)).argsort(-1)[..., :2].astype(np.uint8),
        "another turn's": other.routing.experts,
    }[kind]
    return replace(sample, routing=replace(sample.routing, experts=experts))
