"""What may still be changed when a run is resumed: keys that do not change its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.compose import compose
from conf.errors import ConfigError
from conf.keys import dotted
from conf.schema import Config

CHANGEABLE = (
    "engine.cache_tokens",
    "engine.host",
    "engine.max_running_requests",
    "engine.port",
    "engine.threads",
    "engine.url",
    "gateway.",
    "model.cache_dir",
    "observe.",
    "rollout.attempts",
    "rollout.breaker",
    "rollout.concurrency",
    "rollout.deadlines.",
    "rollout.limits.",
    "run.keep_checkpoints",
    "trainer.tokens_per_microbatch",
    "trainer.threads",
)
"""Keys, or sections (ending in a dot), that a resumed run may change; besides these, run.steps may
grow.
"""


def resume_config(stored: Mapping[str, Any], overrides: list[str]) -> Config:
    """Return the stored configuration, changed by ``overrides``.

    Raises ConfigError with every change that would make the run's earlier and later steps two
    different experiments.
    """
    before = compose([], base=stored)
    after = compose(overrides, base=stored)
    old, new = (dict(dotted(config.model_dump(mode="json"))) for config in (before, after))
    faults = [
        f"{key} was {old.get(key)} and cannot become {new.get(key)} in a resumed run: "
        "drop the override, or start a new run"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and key != "run.steps" and not key.startswith(CHANGEABLE)
    ]
    if after.run.steps < before.run.steps:
        faults.append(
            f"run.steps was {before.run.steps} and can only grow, not become {after.run.steps}"
        )
    if faults:
        raise ConfigError(faults)
    return after
