"""What may still be changed when a run is resumed: keys that do not change its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from conf.compose import compose
from conf.errors import ConfigError
from conf.keys import dotted
from conf.schema import Config

CHANGEABLE = (
    "engine.arguments",
    "engine.cache_tokens",
    "engine.host",
    "engine.max_running_requests",
    "engine.memory_fraction",
    "engine.port",
    "engine.start_s",
    "engine.tensor_parallel",
    "engine.threads",
    "engine.url",
    "engine.workers",
    "executor.",
    "faults.",
    "gateway.",
    "model.cache_dir",
    "observe.",
    "rollout.attempts",
    "rollout.breaker",
    "rollout.concurrency",
    "rollout.deadlines.",
    "rollout.limits.",
    "run.keep_checkpoints",
    "sandbox.warm",
    "task.repositories",
    "trainer.tokens_per_microbatch",
    "trainer.threads",
)
"""Keys, or sections (ending in a dot), that a resumed run may change."""

GROWING = ("eval.attempts_per_task", "eval.tasks", "run.steps")
"""Keys that it may raise; null is most."""


def resume_config(
    stored: Mapping[str, Any], overrides: list[str], *, also: tuple[str, ...] = ()
) -> Config:
    """Return the stored configuration, changed by ``overrides``: keys of ``CHANGEABLE``, of
    ``GROWING`` and those that ``also`` may change.

    Raises ConfigError with every change that would make the run's earlier and later steps two
    different experiments.
    """
    free = (*CHANGEABLE, *also)
    before = compose([], base=stored)
    after = compose(overrides, base=stored)
    old, new = (dict(dotted(config.model_dump(mode="json"))) for config in (before, after))
    faults = [
        f"{key} was {old.get(key)} and cannot become {new.get(key)} in a resumed run: "
        "drop the override, or start a new run"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and key not in GROWING and not key.startswith(free)
    ]
    faults += [
        f"{key} was {old[key]} and can only grow, not become {new[key]}"
        for key in GROWING
        if _most_if_null(new[key]) < _most_if_null(old[key])
    ]
    if faults:
        raise ConfigError(faults)
    return after


def _most_if_null(value: float | None) -> float:
    return math.inf if value is None else value
