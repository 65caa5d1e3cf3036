"""Paths of a git diff."""

from __future__ import annotations

import codecs
import os
import re
from dataclasses import dataclass
from functools import lru_cache

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_HEADER = re.compile(rf"^diff --git ({_QUOTED}) ({_QUOTED})$")
_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NAME = re.compile(rf"^(---|\+\+\+|rename from|rename to) ({_QUOTED}|[^\t\n]*)")


@dataclass(frozen=True, slots=True)
class DiffPaths:
    """Paths that a diff names."""

    all: frozenset[str]
    """Paths before and after."""
    existing: frozenset[str]
    """Paths that exist before it is applied."""


@lru_cache(maxsize=4)  # a row asks for those of its test patch several times
def read_paths(diff: str) -> DiffPaths:
    """Return the paths that a diff in git's format names.

    Hunks are skipped by their line counts, as a changed line may look like a header.
    """
    before: set[str] = set()
    after: set[str] = set()
    left = [0, 0]
    """Lines of the current hunk that are still to come: old, new."""
    for line in diff.split("\n"):
        if left[0] > 0 or left[1] > 0:
            left[0] -= line[:1] in ("", " ", "-")
            left[1] -= line[:1] in ("", " ", "+")
            continue
        if hunk := _HUNK.match(line):
            left = [int(count) for count in hunk.groups(default="1")]
        elif line.startswith("diff --git ") and (path := _header_path(line)):
            after.add(path)
        elif (name := _NAME.match(line)) and (path := _path(name[2])) != "/dev/null":
            (before if name[1] in ("---", "rename from") else after).add(path)
    return DiffPaths(frozenset(before | after), frozenset(before))


def read_added_lines(diff: str) -> dict[str, list[str]]:
    """Return the lines that a diff in git's format adds, by the path after it."""
    found: dict[str, list[str]] = {}
    path, left = "", [0, 0]
    for line in diff.split("\n"):
        if left[0] > 0 or left[1] > 0:
            left[0] -= line[:1] in ("", " ", "-")
            left[1] -= line[:1] in ("", " ", "+")
            if line[:1] == "+":
                found[path].append(line[1:])
        elif hunk := _HUNK.match(line):
            left = [int(count) for count in hunk.groups(default="1")]
        elif line.startswith("diff --git "):
            path = _header_path(line)
            found.setdefault(path, [])
        elif (name := _NAME.match(line)) and name[1] != "---" and name[2] != "/dev/null":
            path = _path(name[2])
            found.setdefault(path, [])
    return found


def unquote_path(name: str) -> str:
    """Return a path without quotes: git writes unusual paths as C strings."""
    if not name.startswith('"'):
        return name
    return os.fsdecode(codecs.escape_decode(name[1:-1].encode())[0])


def _header_path(line: str) -> str:
    """Return the path of a header with equal paths; "" for a rename, which has its own lines."""
    if quoted := _HEADER.match(line):
        old, new = _path(quoted[1]), _path(quoted[2])
    else:
        names = line[len("diff --git ") :]
        half = len(names) // 2
        old, new = names[:half].removeprefix("a/"), names[half + 1 :].removeprefix("b/")
    return new if old == new else ""


def _path(word: str) -> str:
    path = unquote_path(word)
    return path[2:] if path.startswith(("a/", "b/")) else path
