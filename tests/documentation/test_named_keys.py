"""A configuration key that a page names is one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from conf.key_reference import list_keys
from tests.documentation.site import DOCS

PAGES = sorted(DOCS.glob("*.md"))
FILES = (".html", ".json", ".log", ".py", ".toml", ".txt")
OTHERS = {
    *("sandbox.gateway_url", "rollout.chains", "rollout.record.reward"),
    *("rollout.record.rollout_id", "launch.requirements"),
}
"""Attributes and a module, which look like keys."""


@cache
def keys() -> dict[str, str]:
    """Return the type of every key."""
    return {entry.key: entry.type for entry in list_keys()}


def is_key(name: str) -> bool:
    """Return whether a name is a key, a section of keys, or an entry of a key that is a table."""
    parts = name.split(".")
    above = (".".join(parts[:length]) for length in range(1, len(parts)))
    return (
        name in keys()
        or any(key.startswith(f"{name}.") for key in keys())
        or any("names, each with" in keys().get(each, "") for each in above)
    )


def named_keys(text: str) -> set[str]:
    """Return what looks like a key in a page's code, inline and in blocks of commands."""
    tops = "|".join(sorted({key.partition(".")[0] for key in keys()}))
    code = re.findall(r"^```(?:sh|text)\n(.*?)^```|`([^`\n]+)`", text, re.M | re.S)
    pattern = rf"(?<![\w/.$-])(?:{tops})(?:\.[a-z_][a-z0-9_]*)+(?![\w(*.]|…)"
    found = {name for pair in code for part in pair for name in re.findall(pattern, part)}
    return {name for name in found if not name.endswith(FILES)} - OTHERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_that_a_page_names_exists(page: Path) -> None:
    wrong = {name for name in named_keys(page.read_text("utf-8")) if not is_key(name)}
    assert not wrong


def test_a_misspelt_key_is_found() -> None:
    text = "`trainer.learning_rat=1` and `run.steps`, `reward.options.anything`"
    assert {name for name in named_keys(text) if not is_key(name)} == {"trainer.learning_rat"}
