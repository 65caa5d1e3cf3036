"""Render the page of keys (``docs/keys.md`` of the site) and the table by which a TAB knows them.

Neither is in git: ``mkdocs build`` makes the page, ``conf.key_table`` keeps the table.
"""

from __future__ import annotations

import json
import re
from itertools import groupby

from conf.key_reference import KeyEntry, list_keys
from conf.keys import default_choices, groups

HEAD = """# Keys

Every key with its type, default and comment, as the schema has them. A chosen model, task, agent,
engine or trainer has values for some keys of other sections: `agentrl show KEY CHOICES…` prints a
key with the value that counts, and where it comes from. `???`: the key has no default; `{…}`: data
of the choice. How to set keys: [configuration](configuration.md).
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
    """Return what completion needs: the groups, and each key's choices, values and words."""
    known: dict[str, tuple[set[str], dict[str, None], str]] = {}
    for entry in list_keys():
        choices, values, words = known.setdefault(entry.key, (set(), {}, entry.comment))
        choices.update(entry.choices)
        values.update(dict.fromkeys(entry.values))
        known[entry.key] = choices, values, words
    keys = {
        key: (sorted(choices), list(values), shorten(words))
        for key, (choices, values, words) in sorted(known.items())
    }
    return json.dumps({"groups": groups(), "defaults": default_choices(), "keys": keys})


def shorten(text: str) -> str:
    """Return the beginning of a comment, for a line of the shell's list."""
    first = re.split(r"(?<!e\.g)\. |; ", text)[0].rstrip(".")
    return first if len(first) <= 70 else f"{first[:69]}…"
