"""Bounds the texts and lists of a rollout that the page draws: a policy decides how long they are.

A browser lays out a text of some megabytes for minutes, and nobody reads it.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

TEXT = 100_000
"""Characters of one text."""
TOTAL = 16_000_000
"""Characters of all texts of a rollout; when they are used up, ``LATER`` of each further one, until
a quarter as many were kept of those.
"""
LATER = 500
ITEMS, ALL_ITEMS = 1000, 300_000
"""Items of a list or an object that somebody wrote, and of all of them in a rollout."""
_FOREIGN = ("sent", "reply", "verdict", "extra", "tools")
"""Fields whose lists are as long as a program, a policy or a grader made them."""


class TextCutter:
    """Cuts the texts of one document."""

    def __init__(self) -> None:
        self._left = TOTAL
        self._items = ALL_ITEMS

    def cut(self, value: Any, *, foreign: bool = False) -> Any:
        """Return a JSON value with short texts and, of what is ``foreign``, short lists; arrays of
        numpy stay as they are.
        """
        if isinstance(value, str):
            return self._cut_text(value)
        if not isinstance(value, dict | list | tuple):
            return value
        size = min(len(value), max(0, min(ITEMS, self._items))) if foreign else len(value)
        self._items -= size if foreign else 0
        left_out = len(value) - size
        note = f"… {left_out:,} more: agentrl rollouts RUN ROLLOUT --full"
        if isinstance(value, dict):
            pairs = islice(value.items(), size)
            cut = {
                self.cut(key): self.cut(inner, foreign=foreign or key in _FOREIGN)
                for key, inner in pairs
            }
            return cut | {"…": note} if left_out else cut
        items = [self.cut(inner, foreign=foreign) for inner in islice(value, size)]
        return [*items, note] if left_out else items

    def _cut_text(self, text: str) -> str:
        limit = TEXT if self._left > 0 else LATER if self._left > -TOTAL // 4 else 0
        self._left -= min(len(text), limit)
        return cut_text(text, limit, "--full") if limit or not text else "…"


def cut_text(text: str, limit: int, option: str) -> str:
    """Return at most ``limit`` characters of a text, and which ``option`` shows the others."""
    left_out = len(text) - limit
    if left_out <= 0:
        return text
    more = f"{left_out:,} more characters: agentrl rollouts RUN ROLLOUT {option}"
    return f"{text[:limit]}\n… {more}"
