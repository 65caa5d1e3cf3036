"""Change a run's configuration when it is resumed, but only keys that do not alter its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from conf.absolute_paths import make_paths_absolute
from conf.compose import compose
from conf.errors import ConfigError
from conf.keys import flatten
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
    "eval_task.repositories",
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
    "trainer.distill.deadline_s",
    "trainer.distill.url",
    "trainer.devices",
    "trainer.shard",
    "trainer.tokens_per_microbatch",
    "trainer.threads",
)
"""Keys, or sections (ending in a dot), that a resumed run may change."""

GROWING = ("eval.attempts_per_task", "eval.tasks", "run.steps")
"""Keys that a resumed run may only raise; null (no limit) is the largest value."""


def resume_config(
    stored: Mapping[str, Any], overrides: list[str], *, also: tuple[str, ...] = ()
) -> Config:
    """Return the stored configuration, changed by ``overrides``.

    Only keys of ``CHANGEABLE``, ``GROWING`` and ``also`` may change: any other change would make
    the earlier and the later steps of the run two different experiments. Raises ConfigError with
    every such change.
    """
    free = (*CHANGEABLE, *also)
    before = make_paths_absolute(compose([], base=stored))
    after = make_paths_absolute(compose(overrides, base=stored))
    old, new = (dict(flatten(config.model_dump(mode="json"))) for config in (before, after))
    faults = [
        f"{key} was {old.get(key)} and cannot become {new.get(key)} in a resumed run: "
        "drop the override, or start a new run"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
        and key not in GROWING
        and not key.startswith(free)
        and not _is_version(key, old)
    ]
    faults += [
        f"{key} was {old[key]} and can only grow, not become {new[key]}"
        for key in GROWING
        if _null_as_infinity(new[key]) < _null_as_infinity(old[key])
    ]
    if faults:
        raise ConfigError(faults)
    return after


def _is_version(key: str, config: Mapping[str, Any]) -> bool:
    """Return whether a key is the version of a plug-in, by which other code is taken knowingly."""
    section, _, name = key.rpartition(".")
    return name == "version" and f"{section}.target" in config


def _null_as_infinity(value: float | None) -> float:
    return math.inf if value is None else value
