"""The origin of every value of a configuration: a default, a choice, a file, the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.override_parser.types import Override

from conf.keys import choice_content, flatten, groups, root_content


def find_yaml_origins(choices: Mapping[str, str]) -> dict[str, str]:
    """Return the origin of every default: its choice, and the other key that it follows."""
    found: dict[str, str] = {}
    for group, choice in choices.items():
        for key, value in flatten(choice_content(group, choice), f"{group}."):
            found[key] = _describe_default(f"{group}={choice}", value)
    for key, value in flatten(root_content()):
        found[key] = _describe_default("default", value)
    return found | {f"{group}.kind": "default" for group in choices}


def _describe_default(origin: str, value: Any) -> str:
    return f"{origin}: {value}" if isinstance(value, str) and "${" in value else origin


def overridden_keys(overrides: list[Override]) -> Iterator[str]:
    """Yield every key that the overrides set: a choice sets its ``kind``, a section its keys."""
    for override in overrides:
        key = override.key_or_group
        if key in groups():
            yield f"{key}.kind"
        elif not override.is_delete() and isinstance(value := override.value(), dict):
            yield from (name for name, _ in flatten(value, f"{key}."))
        else:
            yield key
