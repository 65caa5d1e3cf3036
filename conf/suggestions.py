"""Suggest the known word that a mistyped one probably stands for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest_match(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the word of ``known`` that is most similar to ``word``; None if none is similar.

    ``cutoff`` is the least ratio of difflib's ``SequenceMatcher``, 0 to 1.
    """
    return next(iter(difflib.get_close_matches(word, list(known), 1, cutoff)), None)


def suggest(word: str, known: Iterable[str], template: str = "did you mean {}?") -> str:
    """Return ``template`` with the closest known word in it; empty if no known word is similar."""
    match = closest_match(word, known)
    return template.format(match) if match else ""
