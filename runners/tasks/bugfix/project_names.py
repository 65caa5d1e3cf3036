"""Names of projects, of which no two splits share one.

Three words identify a project: its package, the module with the bug and the function. Every such
triple belongs to exactly one split, so no repository of one split occurs in another, while all
splits use the same single words.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Literal

NameSplit = Literal["train", "held_out", "bootstrap"]
"""``bootstrap``: names of the demonstrations, which no task of the other splits has."""

_SPLITS: tuple[NameSplit, ...] = ("train", "held_out", "bootstrap")

# fmt: off
WORDS: tuple[str, ...] = (
    "amber", "apple", "arrow", "basil", "beach", "birch", "cabin", "cedar", "cloud", "coral",
    "daisy", "delta", "eagle", "ember", "fern", "flint", "grape", "hazel", "heron", "ivory",
    "jade", "kite", "lemon", "lilac", "maple", "meadow", "moss", "ocean", "olive", "opal",
    "pearl", "plum", "quartz", "raven", "river", "sage", "stone", "tiger", "violet", "willow",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class ProjectNames:
    """Names of a project's parts; all different."""

    package: str
    module: str
    function: str
    argument: str
    """Argument of the function, if it has one."""
    old: str
    """Wrong word."""
    new: str
    """Right word."""
    other: str
    """Word in ``api.py`` where that says nothing about the bug."""


def assign_split(package: str, module: str, function: str) -> NameSplit:
    """Return the split of a project: one tenth is train, one tenth held out, the rest bootstrap."""
    bucket = zlib.crc32(f"{package}.{module}.{function}".encode()) % 10
    return _SPLITS[min(bucket, 2)]


def draw_names(rng: random.Random, split: NameSplit) -> ProjectNames:
    """Draw the names of a project of a split."""
    while True:
        names = ProjectNames(*rng.sample(WORDS, 7))
        if assign_split(names.package, names.module, names.function) == split:
            return names


def draw_constant(rng: random.Random, split: NameSplit) -> int:
    """Draw a three-digit number that no other split uses."""
    return 300 * _SPLITS.index(split) + rng.randrange(100, 400)
