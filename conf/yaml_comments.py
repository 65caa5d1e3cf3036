"""Read the comments of the YAML files: what stands above each key."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_KEY = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z_]\w*):(?= |$)")
_INDENT = 2


@cache
def read_comments(file: Path) -> dict[str, str]:
    """Return the comment of each key and section by its dotted key; of the file's head by "".

    A sentence may go on in the next key's comment ("below at 1 - clip_low and", "above at …"); then
    both keys have the whole sentence. What a section's own comment says belongs to its keys, too.
    """
    path: list[str] = []
    comments: dict[str, str] = {}
    lines: list[str] = []
    for line in file.read_text("utf-8").splitlines():
        if line.lstrip().startswith("#"):
            lines.append(line.lstrip().removeprefix("#").strip())
        elif found := _KEY.match(line):
            path[len(found["indent"]) // _INDENT :] = [found["name"]]
            comments[".".join(path)] = " ".join(lines)
            lines = []
        else:
            lines = []
    return _complete(comments)


def _complete(comments: dict[str, str]) -> dict[str, str]:
    """Join the parts of a sentence that several keys share."""
    whole: dict[str, str] = {}
    open_keys: list[str] = []
    for key, text in comments.items():
        open_keys = [*open_keys, key] if open_keys else [key]
        so_far = " ".join(filter(None, (whole.get(open_keys[0], ""), text)))
        whole |= dict.fromkeys(open_keys, so_far)
        if not text or text[-1] in ".)":
            open_keys = []
    return whole
