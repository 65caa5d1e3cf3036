"""Write ``docs/keys.md`` and ``conf/keys.json``: ``python -m conf.write_reference``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from conf.key_reference import KeyEntry, list_keys
from conf.keys import CONF_DIR, default_choices, groups

PAGE = CONF_DIR.parent / "docs" / "keys.md"
TABLE = CONF_DIR / "keys.json"
HEAD = """# Keys

Every key with its type, default and comment, written from the schema and the YAML files by
`python -m conf.write_reference`; a test compares. A chosen model, task, agent,
engine or trainer has values of its own for some keys of other sections: `agentrl show KEY CHOICES…`
prints a key with the value that counts, and where it comes from. `???`: the key has no default. How
to set keys: [configuration](configuration.md).
"""


def render_page() -> str:
    """Return the text of ``docs/keys.md``."""
    parts = [HEAD]
    entries = sorted(list_keys(), key=lambda entry: entry.group)
    for group, keys in groupby(entries, lambda entry: entry.group):
        chosen = default_choices().get(group)
        parts.append(f"\n## {group}\n")
        if chosen is not None:
            listed = ", ".join(f"`{choice}`" for choice in groups()[group])
            parts.append(f"\nA group: {listed}; `{chosen}` by default.\n")
        parts.append("\n| key | type | default | |\n|---|---|---|---|\n")
        parts += [_row(entry) for entry in keys]
    return "".join(parts)


def _row(entry: KeyEntry) -> str:
    all_choices = set(entry.choices) == set(groups().get(entry.group, ()))
    where = "" if all_choices else f" *{entry.group}={', '.join(entry.choices)}*"
    words = f"{entry.comment} ([{entry.page.removesuffix('.md')}]({entry.page}))"
    first, *more = entry.default.splitlines() or [""]  # a row of a table is one line
    default = f"{first} …" if more else first
    cells = (f"`{entry.key}`{where}", entry.type, f"`{default}`", words.strip())
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def render_table() -> str:
    """Return the text of ``keys.json``: what the shells' completion needs, a key on each line."""
    known: dict[str, tuple[set[str], dict[str, None], str]] = {}
    for entry in list_keys():
        choices, values, words = known.setdefault(entry.key, (set(), {}, entry.comment))
        choices.update(entry.choices)
        values.update(dict.fromkeys(entry.values))
        known[entry.key] = choices, values, words
    lines = [
        f" {json.dumps(key)}: {json.dumps([sorted(choices), list(values), shorten(words)])}"
        for key, (choices, values, words) in sorted(known.items())
    ]
    head = {"groups": groups(), "defaults": default_choices()}
    return json.dumps(head)[:-1] + ', "keys": {\n' + ",\n".join(lines) + "\n}}\n"


def shorten(text: str) -> str:
    """Return the beginning of a comment, for a line of the shell's list."""
    first = re.split(r"(?<!e\.g)\. |; ", text)[0].rstrip(".")
    return first if len(first) <= 70 else f"{first[:69]}…"


def write(folder: Path | None = None) -> Iterator[Path]:
    """Write both files, and yield those that have changed."""
    for file, text in ((PAGE, render_page()), (TABLE, render_table())):
        target = file if folder is None else folder / file.name
        if not target.exists() or target.read_text("utf-8") != text:
            target.write_text(text, "utf-8")
            yield target


if __name__ == "__main__":
    for path in write():
        print(path)
