"""Make the paths of a configuration absolute, so that it means the same in any directory.

A run stores its configuration when it starts; it may be resumed, regraded and replayed from another
directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from conf.schema import Config

FILES_OR_NAMES = frozenset(
    (section, "path") for section in ("task", "eval_task", "task.sets", "eval_task.sets")
)
"""Texts that are a file if there is one, and else a name on a hub."""


def make_paths_absolute(config: Config) -> Config:
    """Return the configuration with every relative path resolved against the current directory."""
    return config.model_copy(
        update={
            name: _resolve_section(name, section)
            for name, section in config
            if isinstance(section, BaseModel)
        }
    )


def _resolve_section(name: str, section: BaseModel) -> BaseModel:
    changed: dict[str, Any] = {}
    for key, value in section:
        if isinstance(value, Path):
            changed[key] = Path.cwd() / value
        elif (name, key) in FILES_OR_NAMES and isinstance(value, str) and Path(value).exists():
            changed[key] = str(Path.cwd() / value)
        elif isinstance(value, BaseModel):
            changed[key] = _resolve_section(f"{name}.{key}", value)
        elif isinstance(value, tuple):
            changed[key] = tuple(_resolve_entry(f"{name}.{key}", each) for each in value)
        elif isinstance(value, Mapping):
            changed[key] = {
                each: _resolve_entry(f"{name}.{key}", entry) for each, entry in value.items()
            }
    return section.model_copy(update=changed)


def _resolve_entry(name: str, entry: object) -> object:
    return _resolve_section(name, entry) if isinstance(entry, BaseModel) else entry
