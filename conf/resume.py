"""Change a run's configuration when it is resumed, but only keys that do not alter its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, QuotedString

from conf import grammar
from conf.absolute_paths import make_paths_absolute
from conf.compose import compose
from conf.errors import ConfigError
from conf.keys import choice_content, flatten, groups
from conf.schema import Config

CHANGEABLE = (
    "engine.arguments",
    "engine.cache_tokens",
    "engine.memory_fraction",
    "engine.port",
    "engine.tensor_parallel",
    "engine.threads",
    "engine.url",
    "engine.workers",
    "eval_task.repositories",
    "executor.",
    "faults.",
    "gateway.",
    "observe.",
    "rollout.attempts",
    "rollout.breaker",
    "rollout.concurrency",
    "rollout.deadlines.",
    "rollout.limits.",
    "routing_replay.keep_steps",
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
    old = dict(flatten(before.model_dump(mode="json")))
    try:
        after = make_paths_absolute(compose(overrides, base=stored))
    except ConfigError as error:
        # The stored keys fit the stored value: complaints of them would lead away from the key that
        # may not change at all.
        given = _find_values(overrides, old)
        raise ConfigError(_find_refused(old, old | given, free) or error.faults) from error
    new = dict(flatten(after.model_dump(mode="json")))
    faults = _find_refused(old, new, free)
    faults += [
        f"{key} was {old[key]} and can only grow, not become {new[key]}"
        for key in GROWING
        if _null_as_infinity(new[key]) < _null_as_infinity(old[key])
    ]
    if faults:
        raise ConfigError(faults)
    return after


def _find_refused(
    old: Mapping[str, Any], new: Mapping[str, Any], free: tuple[str, ...]
) -> list[str]:
    """Return the fault of every key that differs, and neither is free nor may grow."""
    return [
        f"{key} was {old.get(key)} and cannot become {new.get(key)} in a resumed run: "
        "drop the override, or start a new run"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
        and key not in GROWING
        and not key.startswith(free)
        and not _is_version(key, old)
    ]


def _find_values(overrides: list[str], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return what overrides set of the stored keys and choices, as far as it is one plain value."""
    found = [_read_value(override) for override in grammar.parse(overrides)[0]]
    return {
        key: value
        for key, value in found
        if key in old
        and isinstance(value, str | int | float | None)
        and not _is_path(value, old[key])
    }


def _read_value(override: Override) -> tuple[str, Any]:
    """Return an override's key and value; of a choice those of its ``kind``."""
    key, value = override.key_or_group, override.value()
    text = value.text if isinstance(value, QuotedString) else value
    if text in groups().get(key, ()):
        return f"{key}.kind", choice_content(key, text).get("kind")
    return key, text


def _is_path(value: object, stored: object) -> bool:
    """Return whether a value is the relative path of a stored one."""
    return isinstance(value, str) and stored == str(Path.cwd() / value)


def _is_version(key: str, config: Mapping[str, Any]) -> bool:
    """Return whether a key is the version of a plug-in, by which other code is taken knowingly."""
    section, _, name = key.rpartition(".")
    return name == "version" and f"{section}.target" in config


def _null_as_infinity(value: float | None) -> float:
    return math.inf if value is None else value
