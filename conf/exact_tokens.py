"""Name what is not exact about the turns that an engine records, in one line for every command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.schema import Config

ENDPOINTS = ("openai", "anthropic")
"""Engines that take and give texts."""

NO_IDS = (
    "takes and gives texts: token ids and logprobs are not known, and tokens are counted by the "
    "endpoint. Nothing can be trained or replayed from its turns"
)


def describe_inexactness(config: Config | Mapping[str, Any]) -> str | None:
    """Return one line about what the run's engine does not record; None if turns are exact.

    ``config``: a configuration, or one as a run's store holds it.
    """
    kind: str | None
    if isinstance(config, Config):
        kind = config.engine.kind
    else:
        engine = config.get("engine")
        kind = engine.get("kind") if isinstance(engine, Mapping) else None
    return f"engine={kind} {NO_IDS}" if kind in ENDPOINTS else None
