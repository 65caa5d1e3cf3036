"""Describe every key: its type, default, choices, comment, and the page that explains it.

The types are those of the schema, the defaults and comments those of the YAML files.
``write_reference`` writes ``docs/keys.md`` and ``keys.json`` (for the shells' completion) from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from conf.keys import CONF_DIR, choice_content, flatten, groups, root_content
from conf.schema_walk import find_models
from conf.type_words import describe_type, list_values, write_value
from conf.yaml_comments import read_comments

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
    """Choices of its group that have it; empty for a key of ``config.yaml``."""
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
    """Return every key of the YAML files; one with several meanings has an entry for each."""
    found: dict[tuple[str, ...], KeyEntry] = {}
    sections = {name: value for name, value in root_content().items() if name != "defaults"}
    entries = list(_describe_tree(sections, "", "config.yaml"))
    for group, choices in groups().items():
        for choice in choices:
            content = {group: choice_content(group, choice)}
            entries += _describe_tree(content, choice, f"{group}/{choice}.yaml")
    for entry in entries:
        same = (entry.key, entry.type, entry.default, entry.comment)
        before = found[same].choices if same in found else ()
        found[same] = KeyEntry(
            entry.key, (*before, *entry.choices), entry.type, entry.values, entry.default,
            entry.comment, entry.page,
        )  # fmt: skip
    return tuple(found.values())


def _describe_tree(tree: Mapping[str, Any], choice: str, file: str) -> Iterator[KeyEntry]:
    comments = read_comments(CONF_DIR / file)
    for key, default in flatten(tree):
        section, _, name = key.rpartition(".")
        if choice and key.count(".") == 1 and name == "kind":
            continue  # the choice itself
        inner = key.partition(".")[2] if choice else key
        annotation, metadata = _find_type(section, name, tree)
        comment = _find_comment(inner, comments)
        yield KeyEntry(
            key,
            (choice,) if choice else (),
            describe_type(annotation, metadata),
            list_values(annotation),
            write_value(default),
            comment,
            find_page(key, comment),
        )


def _find_type(section: str, name: str, tree: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    for model in find_models(section, tree):
        if name in model.model_fields:
            field = model.model_fields[name]
            return field.annotation, field.metadata
    return str, []  # a variable of a program's environment


def _find_comment(key: str, comments: Mapping[str, str]) -> str:
    parts = key.split(".")
    texts = [comments.get(".".join(parts[: n + 1]), "") for n in range(len(parts))]
    return " ".join(text for text in dict.fromkeys(texts) if text)


def find_page(key: str, comment: str = "") -> str:
    """Return the page of ``docs/`` that explains a key."""
    if named := re.findall(r"docs/([a-z_]+\.md)", comment):
        return str(named[-1])
    return PAGES[max((name for name in PAGES if key.startswith(name)), key=len)]
