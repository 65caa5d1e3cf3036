"""Git diffs as text: their paths, the lines that they add, and their reversal."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_HEADER = re.compile(rf"^diff --git ({_QUOTED}) ({_QUOTED})$")
_HUNK = re.compile(r"^@@ -(\d+(?:,\d+)?) \+(\d+(?:,\d+)?) @@(.*)$")
_NAME = re.compile(rf"^(---|\+\+\+|rename from|rename to|copy from|copy to) ({_QUOTED}|[^\t\n]*)")
_CONTEXT = 3
"""Lines of context at the end of a hunk, as git writes them."""
_INDEX = re.compile(r"^index (\w+)\.\.(\w+)(.*)$")
_SIGNS = {"-": "+", "+": "-"}
_FIRST = {"--- ": "+++ ", "old mode ": "new mode "}
"""Begin of a header line → begin of the one that follows it, whose value it exchanges."""
_WORDS = {"new file mode ": "deleted file mode ", "deleted file mode ": "new file mode "}
_REFUSED = ("rename ", "copy ", "GIT binary patch", "Binary files ")


@dataclass(frozen=True, slots=True)
class DiffPaths:
    """Paths that a diff names."""

    all: frozenset[str]
    """Paths before and after."""
    existing: frozenset[str]
    """Paths that exist before it is applied."""
    remaining: frozenset[str]
    """Paths that exist after it is applied: not those that it deletes, or renames to others."""


@lru_cache(maxsize=4)  # a row asks for those of its test patch several times
def read_paths(diff: str) -> DiffPaths:
    """Return the paths that a diff in git's format names."""
    before: set[str] = set()
    after: set[str] = set()
    unclear: set[str] = set()
    """Paths of headers: whether they are deleted, a later line says."""
    gone: set[str] = set()
    path = old = ""
    is_new = False
    for line, changed in _walk(diff):
        if changed:
            continue
        if line.startswith("diff --git "):
            path, is_new = _header_path(line), False
            unclear |= {path} - {""}
        elif line.startswith("new file mode "):
            is_new = True
        elif path and not is_new and line.startswith(("deleted file mode ", "old mode ", "index ")):
            before.add(path)
            gone |= {path} if line.startswith("deleted") else set()
        elif name := _NAME.match(line):
            word, found = name[1], _path(name[2])
            if found == "/dev/null":
                gone |= {old} if word == "+++" else set()
            elif word in ("---", "rename from", "copy from"):
                before.add(found)
                gone |= {found} if word == "rename from" else set()
            else:
                after.add(found)
            old = found
    remaining = after | (unclear - gone)
    return DiffPaths(frozenset(before | after | unclear), frozenset(before), frozenset(remaining))


def complete_diff(diff: str) -> str:
    r"""Return a diff with what a set loses when it strips its texts: the end of the last line, and
    blank lines of context at the end of the last hunk. git refuses such a diff as corrupt.

    >>> complete_diff("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-old\n+new")
    '--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-old\n+new\n \n'
    """
    if not diff.strip():
        return diff
    lines = diff.removesuffix("\n").split("\n")
    old = new = 0
    for line in lines:
        old, new = _count_left(line, old, new)
    missing = old if 0 < old == new <= _CONTEXT else 0
    return "\n".join(lines) + "\n" + " \n" * missing


def read_added_lines(diff: str) -> dict[str, list[str]]:
    """Return the lines that a diff in git's format adds, by the path after it."""
    found: dict[str, list[str]] = {}
    path = ""
    for line, changed in _walk(diff):
        if changed:
            if line[:1] == "+":
                found[path].append(line[1:])
        elif line.startswith("diff --git "):
            path = _header_path(line)
            found.setdefault(path, [])
        elif (name := _NAME.match(line)) and name[1] != "---" and name[2] != "/dev/null":
            path = _path(name[2])
            found.setdefault(path, [])
    return found


def _walk(diff: str) -> Iterator[tuple[str, bool]]:
    """Yield each line with whether it is in a hunk, by the counts in the hunk's header: a changed
    line may look like a header.
    """
    old = new = 0
    """Lines of the current hunk that are still to come."""
    for line in diff.split("\n"):
        in_hunk = old > 0 or new > 0
        old, new = _count_left(line, old, new)
        yield line, in_hunk


def _count_left(line: str, old: int, new: int) -> tuple[int, int]:
    """Return the lines of a hunk, old and new ones, that are still to come after this line."""
    if old > 0 or new > 0:
        return old - (line[:1] in ("", " ", "-")), new - (line[:1] in ("", " ", "+"))
    if line.startswith("@@ ") and (hunk := _HUNK.match(line)):
        sizes = (int((side + ",1").split(",")[1]) for side in (hunk[1], hunk[2]))
        return next(sizes), next(sizes)
    return 0, 0


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


def reverse_diff(diff: str) -> str:
    r"""Return the diff that undoes a text diff in git's format; raises ValueError for others.

    >>> print(reverse_diff("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-old\n-er\n+new"))
    --- a/x
    +++ b/x
    @@ -1 +1,2 @@
    +old
    +er
    -new
    """
    lines: list[str] = []
    first = ""
    for line, changed in _walk(diff):
        if changed:
            lines.append(_SIGNS.get(line[:1], line[:1]) + line[1:])
        elif hunk := _HUNK.match(line):
            lines.append(f"@@ -{hunk[2]} +{hunk[1]} @@{hunk[3]}")
        elif line.startswith(tuple(_FIRST)):
            first = line
        elif first:
            lines += _exchange(first, line)
            first = ""
        elif line.startswith(_REFUSED):
            raise ValueError(f"a diff with {line.split(' ', 1)[0]!r} cannot be reversed")
        else:
            lines.append(_reverse_header(line))
    return "\n".join(lines)


def _exchange(first: str, second: str) -> list[str]:
    """Return two header lines with their values exchanged; raises ValueError."""
    begin = next(word for word in _FIRST if first.startswith(word))
    follows = _FIRST[begin]
    if not second.startswith(follows):
        raise ValueError(f"{first!r} is not followed by {follows!r}")
    old, new = first.removeprefix(begin), second.removeprefix(follows)
    if begin == "--- ":
        old, new = (re.sub(r"^[ab]/", f"{side}/", name) for name, side in ((old, "b"), (new, "a")))
    return [f"{begin}{new}", f"{follows}{old}"]


def _reverse_header(line: str) -> str:
    for word, other in _WORDS.items():
        if line.startswith(word):
            return other + line.removeprefix(word)
    if index := _INDEX.match(line):
        return f"index {index[2]}..{index[1]}{index[3]}"
    return line
