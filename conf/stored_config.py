"""A stored configuration as the overrides that make it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from conf import grammar
from conf.keys import REPLACED, RETIRED, choice_of_kind, groups, unknown_choice
from conf.schema_defaults import DATA


def to_overrides(base: Mapping[str, Any], replaced: set[str], faults: list[str]) -> list[str]:
    """Return the overrides that turn the YAML files into ``base``, without the groups that are
    ``replaced`` by another choice.
    """
    lines: list[str] = []
    for section, content in base.items():
        if section not in groups():
            lines += _leaves(section, content)
        elif section not in replaced:
            kind = content.get("kind") if isinstance(content, dict) else content
            choice = choice_of_kind(section, kind)
            if choice is None:
                faults.append(unknown_choice(section, kind))
                continue
            keys = content if isinstance(content, dict) else {}
            lines.append(f"{section}={choice}")
            lines += _leaves(section, {name: keys[name] for name in keys if name != "kind"})
    return lines


def _leaves(section: str, content: Any) -> list[str]:
    """Return the overrides that set every key of a section, or a top-level key itself."""
    if not isinstance(content, dict):
        return [grammar.as_override(section, content)]
    return [
        grammar.as_override(key, value)
        for key, value in _whole_plugins(content, f"{section}.")
        if key not in REPLACED and (key not in RETIRED or RETIRED[key] != value)
    ]


def _whole_plugins(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield every leaf of a section with its key; a plug-in behind a key, and options, are one."""
    for name, value in content.items():
        key = f"{prefix}{name}"
        if not isinstance(value, Mapping) or not value or "target" in value or name in DATA:
            yield key, value
        else:
            yield from _whole_plugins(value, f"{key}.")
