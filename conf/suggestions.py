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


def abbreviates(short: str, name: str) -> bool:
    """Return whether ``short`` stands for ``name``: beginnings of its words, one after the other.

    ``lr`` and ``learn_rate`` are ``learning_rate``, ``gradclip`` is ``grad_clip``. With three
    letters or more words at the end may be missing: ``ent`` is ``entropy_bonus``.
    """
    words = name.split("_")
    return _begins(short.replace("_", ""), words, may_stop=len(short) > 2)


def _begins(letters: str, words: list[str], *, may_stop: bool) -> bool:
    """Return whether ``letters`` are beginnings of ``words``, in order."""
    if not letters:
        return may_stop or not words
    if not words:
        return False
    first, *rest = words
    return any(
        _begins(letters[size:], rest, may_stop=may_stop)
        for size in range(1, len(first) + 1)
        if letters[:size] == first[:size]
    )
