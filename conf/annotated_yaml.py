"""Write the origin of every value beside it, as a comment in YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_KEY = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z_][\w]*):(?= |$)")
_COLUMN = 44
"""Column of the comments; a longer line pushes its own to the right."""
_INDENT = 2


def annotate(text: str, origins: Mapping[str, str]) -> str:
    """Return the YAML ``text`` with the origin of every key that ``origins`` has.

    The text is a tree of sections as OmegaConf writes it: two spaces per level.
    """
    return "".join(
        f"{line:{_COLUMN}}  # {origins[key]}\n" if key in origins else f"{line}\n"
        for key, line in _keyed_lines(text)
    )


def _keyed_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield each line with the dotted key that it sets; with an empty one if it sets none."""
    path: list[str] = []
    for line in text.splitlines():
        found = _KEY.match(line)
        if found is None:
            yield "", line
            continue
        path[len(found["indent"]) // _INDENT :] = [found["name"]]
        yield ".".join(path), line
