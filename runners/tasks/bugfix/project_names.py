"""Names of projects that never cross a split.

A project is known by three words: its package, the module with the bug and the function. Every such
triple belongs to exactly one split, so no repository of one split can occur in another, while the
single words are common to all of them.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Literal

NameSplit = Literal["train", "held_out", "bootstrap"]
"""``bootstrap``: the names that demonstrations use; no task of either split has them."""

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
    """What a project calls its parts; all different."""

    package: str
    module: str
    function: str
    first: str
    """The function's first argument."""
    second: str
    """Its second."""
    companion: str
    """Another module of the package, with one function and one constant."""
    raiser: str
    constant: str


def assign_split(package: str, module: str, function: str) -> NameSplit:
    """Return the one split a project belongs to: a tenth each is train and held out."""
    place = zlib.crc32(f"{package}.{module}.{function}".encode()) % 10
    return _SPLITS[min(place, 2)]


def draw_names(rng: random.Random, split: NameSplit) -> ProjectNames:
    """Draw the names of a project of a split."""
    while True:
        names = ProjectNames(*rng.sample(WORDS, 8))
        if assign_split(names.package, names.module, names.function) == split:
            return names


def draw_constant(rng: random.Random, split: NameSplit) -> int:
    """Draw a three-digit number that no other split uses."""
    return 300 * _SPLITS.index(split) + rng.randrange(100, 400)
