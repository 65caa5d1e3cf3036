"""Parses the texts of filters that the export and the viewer share; errors lack the option's name.

Each caller puts the name and the text before what is raised, as its users write them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from conf.suggestions import suggest


def parse_steps(text: str) -> range:
    """Return the steps of ``5`` or ``3-7``, the last one included; raises ValueError."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip(), re.ASCII)
    first, last = (int(part or match[1]) for part in match.groups()) if match else (1, 0)
    if last < first:
        raise ValueError("give a step (5) or a range of them (3-7)")
    return range(first, last + 1)


def check_min_reward(reward: float) -> float:
    """Return a least reward; raises ValueError for NaN, which no reward reaches."""
    if math.isnan(reward):
        raise ValueError("give a number")
    return reward


def choose(text: str, known: Iterable[str]) -> str:
    """Return a text that is one of the known ones; raises ValueError that names them."""
    if text not in known:
        raise ValueError(describe_choices(text, known))
    return text


def describe_choices(wrong: str, known: Iterable[str]) -> str:
    """Return what to write instead of an unknown text."""
    hint = suggest(wrong, known, "did you mean {}? ")
    return f"{hint}choose one of {', '.join(known)}"
