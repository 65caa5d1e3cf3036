"""Defaults of a choice for other sections: what is run decides, not the smallest example.

A choice's YAML file may have a section ``other_sections``: the values of other sections that belong
to this choice (the tiny policy's 96 tokens per turn, an agent program's window), and those of its
own that depend on another choice (under ``GROUP=CHOICE``). Precedence, the later one wins::

    config.yaml and the chosen YAML files
        < trainer < engine < task < eval_task < harness < model < --config < KEY=VALUE

where each group stands for the ``other_sections`` of its choice. A value for another *group* is the
choice that is taken if nobody makes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from conf.keys import choice_file, groups

OTHER_SECTIONS = "other_sections"
ORDER = ("trainer", "engine", "task", "eval_task", "harness", "model")
"""Groups whose choices have defaults for other sections; the later one wins."""


def imply_choices(
    defaults: Mapping[str, str], chosen: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return the choices that other choices make where nobody made one, each with its origin."""
    choices = {**defaults, **chosen}
    implied: dict[str, tuple[str, str]] = {}
    for group in ORDER:
        for key, value in _read(group, choices[group], choices):
            if key in groups() and key not in chosen:
                choices[key] = str(value)
                implied[key] = str(value), f"{group}={choices[group]}"
    return implied


def layer_values(choices: Mapping[str, str]) -> list[tuple[str, Any, str]]:
    """Return the values that these choices have for other sections, in order of precedence, as
    (key, value, ``GROUP=CHOICE``).
    """
    return [
        (key, value, f"{group}={choices[group]}")
        for group in ORDER
        for key, value in _read(group, choices[group], choices)
        if key not in groups()
    ]


def _read(group: str, choice: str, choices: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    yield from _select(choice_file(group, choice).get(OTHER_SECTIONS, {}), choices)


def _select(content: Mapping[str, Any], choices: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield keys and values; a section ``GROUP=CHOICE`` counts only with that choice."""
    for key, value in content.items():
        other, is_condition, wanted = key.partition("=")
        if not is_condition:
            yield key, value
        elif choices[other] == wanted:
            yield from _select(value, choices)
