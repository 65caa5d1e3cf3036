"""Keys that do nothing with a trainer, and are refused where they are given.

Most keys that mean nothing together are refused by a rule on their values (``rules``). These
have no value that says "off": their defaults stay, another value is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from conf.keys import flatten

MISSING = "???"
"""Default of a key that has none."""
INERT: dict[str, dict[str, str]] = {
    "local": {
        "model.stop_token_ids": "only trainer=slime gives them to engines",
        "model.parsers.": "only trainer=slime starts engines with them",
        "model.config": "only trainer=slime reads the architecture before the start",
        "model.speculative.": "only trainer=slime starts engines with it",
        "model.fp8_path": "only trainer=slime starts engines with it",
        "model.architecture.": "only trainer=slime takes it from here, others read config.json",
        "model.layout.": "only trainer=slime spreads a model over GPUs",
    },
    "slime": {
        "engine.": "it starts SGLang servers of its own, which model.layout describes",
        "rollout.deadlines.drain_s": "slime itself changes the weights",
    },
}
"""By ``trainer.kind``: keys, or sections (ending in a dot), with the reason."""


def find_inert(tree: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fault of every key of a resolved configuration that its trainer does not read and
    that has another value than by default. ``defaults``: by key, interpolations unresolved.
    """
    trainer = str((tree.get("trainer") or {}).get("kind"))
    for beginning, reason in INERT.get(trainer, {}).items():
        for key, value in flatten(tree):
            if (
                key.startswith(beginning)
                and not (key.endswith(".kind") and key.count(".") == 1)  # a choice has rules
                and value != resolve_default(tree, key, value, defaults.get(key, MISSING))
            ):
                yield (f"{key}={value} does nothing with trainer={trainer}: {reason}; leave it out")


def resolve_default(tree: Mapping[str, Any], key: str, value: Any, default: Any) -> Any:
    """Return a key's default, which may follow other keys; ``value`` if it has none."""
    if default == MISSING:
        return value
    if "${" not in str(default):
        return default
    copy = OmegaConf.create(dict(tree))
    OmegaConf.update(copy, key, default)
    return OmegaConf.select(copy, key)
