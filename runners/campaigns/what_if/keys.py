"""The keys that a store can answer for, and the configuration that they make.

Invariant: what is compared differs from the run's configuration in those keys alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conf.absolute_paths import make_paths_absolute
from conf.errors import AgentrlError, ConfigError, ExitCode
from conf.keys import flatten
from conf.schema import Config
from runners.records.store import RunStore

ANSWERED = (
    "fanout",
    "reward",
    "rollout.replace_flat",
    "trainer.accept_reward",
    "trainer.advantage",
    "trainer.aggregation",
    "trainer.aggregation_tokens",
    "trainer.credit",
    "trainer.min_group",
    "trainer.normalize_std",
    "trainer.train_unfinished",
)
"""Keys, or sections, whose effect follows from what a run stored."""


class WhatIfError(AgentrlError):
    """The store does not hold the answer."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a run, and others for the same rollouts."""

    before: Config
    after: Config
    changed: dict[str, tuple[Any, Any]]
    """Keys that differ, with both values; None: the section has no such key."""

    @property
    def pays_differently(self) -> bool:
        """True if the rewards of rollouts have to be computed again."""
        return self.before.reward != self.after.reward


def change_rules(store: RunStore, overrides: Sequence[str]) -> Rules:
    """Return a run's rules and those that ``overrides`` make of them.

    Raises ConfigError with every key that the store cannot answer for, and for values that the
    configuration refuses.
    """
    stored = store.config()
    before = _read_own(stored)
    after = _compose(overrides, stored) if overrides else before
    old, new = (dict(flatten(config.model_dump(mode="json"))) for config in (before, after))
    changed = {
        key: (old.get(key), new.get(key))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    }
    refused = [key for key in changed if not _is_answered(key)]
    if refused:
        raise ConfigError([_refuse(key, store.run_dir) for key in refused])
    return Rules(before, after, changed)


def _read_own(stored: Mapping[str, Any]) -> Config:
    """Return a run's own configuration; one of another version gets today's keys."""
    with suppress(ValidationError):
        config = Config.model_validate(stored)
        if config.model_dump(mode="json") == stored:
            return make_paths_absolute(config)
    return _compose([], stored)


def _compose(overrides: Sequence[str], stored: Mapping[str, Any]) -> Config:
    # Late: Hydra takes as long as a question without overrides.
    from conf.compose import compose

    return make_paths_absolute(compose(list(overrides), base=stored))


def _is_answered(key: str) -> bool:
    """Return whether a key is such a one, in such a section, or an option of a plug-in there."""
    return any(f"{key}.".startswith(f"{each}.") for each in ANSWERED)


def _refuse(key: str, run_dir: Path) -> str:
    return (
        f"{key}: what it would have changed is not in {run_dir}: other rollouts would have been "
        f"sampled, or other gradients computed. A run's store answers for {', '.join(ANSWERED)}; "
        "drop the override, or start a run with it"
    )
