"""Describe every key: its type, default, choices, comment, and the page that explains it.

All of it is the schema's; a choice's YAML file may have another default. ``write_reference`` makes
the page of keys, and the table by which a TAB knows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeGuard

from pydantic import BaseModel

from conf.keys import choice_content, groups, root_content
from conf.schema import Config
from conf.schema_defaults import DATA, find_section
from conf.schema_walk import find_models
from conf.type_words import describe_type, list_values, write_value

PAGES = {
    "": "configuration.md",
    "run": "concepts.md",
    "run.overlap": "asynchronous.md",
    "run.staleness": "asynchronous.md",
    "run.window": "asynchronous.md",
    "run.eval_": "tasks.md",
    "scenario": "concepts.md",
    "model": "clusters.md",
    "sampling": "algorithms.md",
    "engine": "evaluate.md",
    "gateway": "gateway.md",
    "gateway.limits": "security.md",
    "sandbox": "sandboxes.md",
    "harness": "agents.md",
    "task": "tasks.md",
    "eval_task": "tasks.md",
    "reward": "rewards.md",
    "fanout": "concepts.md",
    "routing_replay": "routing_replay.md",
    "rollout": "when_it_fails.md",
    "rollout.capture": "security.md",
    "executor": "clusters.md",
    "trainer": "algorithms.md",
    "launch": "clusters.md",
    "faults": "when_it_fails.md",
    "eval": "evaluate.md",
    "observe": "metrics.md",
    "observe.wandb": "sinks.md",
    "observe.mlflow": "sinks.md",
    "observe.otlp": "sinks.md",
    "observe.prices": "commands.md",
}
"""Pages of ``docs/`` by the beginning of a key; the longest counts. A comment may name another."""


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key, in the choices of its group in which it means the same."""

    key: str
    choices: tuple[str, ...]
    """Choices of its group that have it; empty for a key that is in no group."""
    type: str
    values: tuple[str, ...]
    """Words that it takes, if there is a list of them."""
    default: str
    """As written in YAML; ``???``: it has none and must be given."""
    comment: str
    page: str
    """Page of ``docs/``."""

    @property
    def group(self) -> str:
        """The group or section that it belongs to."""
        return self.key.partition(".")[0]


@cache
def list_keys() -> tuple[KeyEntry, ...]:
    """Return every key of the schema; one with several meanings has an entry for each."""
    found: dict[tuple[str, ...], KeyEntry] = {}
    for entry in _describe_sections():
        same = (entry.key, entry.type, entry.default, entry.comment)
        before = found[same].choices if same in found else ()
        found[same] = replace(entry, choices=(*before, *entry.choices))
    return tuple(found.values())


def _describe_sections() -> Iterator[KeyEntry]:
    yield from _describe(Config, root_content(), "")
    for group, choices in groups().items():
        for choice in choices:
            content = choice_content(group, choice)
            for model in find_models(group, {group: content}):
                yield from _describe(model, content, f"{group}.", choice)


def _describe(
    model: type[BaseModel], values: Mapping[str, Any], section: str, choice: str = ""
) -> Iterator[KeyEntry]:
    """Yield the keys of a section, with the values that they have in a choice."""
    for name, field in model.model_fields.items():
        key = f"{section}{name}"
        if name == "kind" or name not in values:
            continue  # the choice itself; a group
        if (inner := find_section(name, field)) is not None:
            yield from _describe(inner, values[name], f"{key}.", choice)
            continue
        comment = describe_field(model, name)
        yield KeyEntry(
            key,
            (choice,) if choice else (),
            describe_type(field.annotation, field.metadata),
            list_values(field.annotation),
            "{…}" if name in DATA and values[name] else write_value(values[name]),
            comment,
            find_page(key, comment),
        )


def describe_field(model: type[BaseModel], name: str) -> str:
    """Return the string under a field, or under the one that it replaces in its parents."""
    fields = (parent.model_fields.get(name) for parent in model.__mro__ if _is_model(parent))
    found = next((field.description for field in fields if field and field.description), "")
    return " ".join(found.replace("``", "`").split())


def _is_model(parent: type) -> TypeGuard[type[BaseModel]]:
    return issubclass(parent, BaseModel)


def find_page(key: str, comment: str = "") -> str:
    """Return the page of ``docs/`` that explains a key."""
    if named := re.findall(r"docs/([a-z_]+\.md)", comment):
        return str(named[-1])
    return PAGES[max((name for name in PAGES if key.startswith(name)), key=len)]
