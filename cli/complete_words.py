"""Complete a word of a command line: KEY=VALUE, a run directory, a benchmark.

Reads ``conf/keys.json``, so that a TAB imports neither Hydra nor the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer

Words = list[tuple[str, str]]
"""Completions, each with a few words of help."""
_RUN_FILES = ("store.sqlite", "config.json")
"""Files by which a run directory is known."""


@cache
def _table() -> dict[str, Any]:
    file = Path(__file__).parent.parent / "conf" / "keys.json"
    return dict(json.loads(file.read_text("utf-8")))


def complete_override(ctx: typer.Context, incomplete: str) -> Words:
    """Complete a group, section, key or value, knowing the choices made so far."""
    given = [str(word) for word in ctx.params.get("overrides") or ()]
    chosen = dict(word.split("=", 1) for word in given if "=" in word)
    key, equals, value = incomplete.partition("=")
    if equals:
        return [(f"{key}={each}", words) for each, words in _values(key, value, chosen)]
    return list(_keys(key, chosen))


def complete_key(ctx: typer.Context, incomplete: str) -> Words:
    """Complete a key for `show KEY`, or an override."""
    found = complete_override(ctx, incomplete)
    return [*found, *((w.rstrip("="), text) for w, text in found if w[-1] == "=" and "." in w)]


def complete_run(incomplete: str) -> Words:
    """Complete a run directory: those in ``runs/`` first, newest first, then any folder."""
    begun = Path(incomplete)
    parent = begun if incomplete.endswith("/") else begun.parent
    folders = [Path("runs")] if not incomplete else [parent]
    found = [each for folder in folders for each in _list_folders(folder)]
    return [
        (f"{path}" if _is_run(path) else f"{path}/", "a run" if _is_run(path) else "")
        for path in sorted(found, reverse=True)
        if str(path).startswith(incomplete.removeprefix("./")) or not incomplete
    ]


def complete_benchmark() -> Words:
    """Complete the benchmark of ``eval``."""
    return [("bugfix", "the built-in tasks"), ("swebench", "SWE-bench")]


def _keys(begun: str, chosen: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the next part of each key that begins so: ``engine=``, ``rollout.limits.``."""
    groups, keys = _table()["groups"], _table()["keys"]
    if "." not in begun:
        yield from ((f"{group}=", "a choice") for group in groups if group.startswith(begun))
    mine = {key: row for key, row in keys.items() if _belongs(key, row[0], chosen)}
    for names in (mine, keys):
        found: dict[str, str] = {}
        for key, row in names.items():
            if key.startswith(begun):
                dot = key.find(".", len(begun))
                found.setdefault(key[: dot + 1] if dot >= 0 else f"{key}=", row[2])
        if found:
            yield from ((k, "" if k.endswith(".") else words) for k, words in found.items())
            return


def _belongs(key: str, choices: list[str], chosen: Mapping[str, str]) -> bool:
    group = key.partition(".")[0]
    return not choices or chosen.get(group, _table()["defaults"].get(group)) in choices


def _values(key: str, begun: str, chosen: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the values of a key or the choices of a group; behind a comma the next of a sweep."""
    table = _table()
    before, comma, last = begun.rpartition(",")
    known = table["groups"].get(key) or table["keys"].get(key, [[], []])[1]
    taken = before.split(",") if comma else []
    for value in known:
        if value.startswith(last) and value not in taken:
            yield f"{before}{comma}{value}", ""


def _list_folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]
    except OSError:
        return []


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in _RUN_FILES)
