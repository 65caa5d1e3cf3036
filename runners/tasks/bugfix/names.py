"""Identifiers that never cross a split.

An identifier is two words, ``copper_lane``. Every ordered pair of words belongs to exactly one split, so no package,
module, function, argument or constant of one split can occur in another, while each single word is met in all of them.
"""

from __future__ import annotations

import random
from typing import Literal

NameSplit = Literal["train", "held_out", "bootstrap"]
"""``bootstrap``: the names that demonstrations use; no task of either split has them."""

_SPLITS: tuple[NameSplit, ...] = ("train", "held_out", "bootstrap")

_PARTS = 10
"""One tenth of the pairs is for each split of tasks, the rest for demonstrations: a policy warmed up on fewer learns
which words never go together instead of how to copy a name."""

WORDS: tuple[str, ...] = (
    *(
        "amber",
        "anchor",
        "apple",
        "arrow",
        "basket",
        "beacon",
        "bridge",
        "cable",
        "candle",
        "canyon",
        "castle",
        "cedar",
    ),
    *(
        "clover",
        "copper",
        "coral",
        "cotton",
        "crystal",
        "desert",
        "falcon",
        "feather",
        "forest",
        "garden",
        "ginger",
        "glacier",
    ),
    *(
        "harbor",
        "island",
        "ivory",
        "jasper",
        "kettle",
        "lantern",
        "lemon",
        "maple",
        "marble",
        "meadow",
        "mirror",
        "nectar",
    ),
    *(
        "ocean",
        "olive",
        "orchid",
        "paper",
        "pebble",
        "pepper",
        "planet",
        "quartz",
        "raven",
        "ribbon",
        "river",
        "saddle",
    ),
)


def split_of(identifier: str) -> NameSplit:
    """The one split an identifier belongs to."""
    first, _, second = identifier.lower().partition("_")
    one, two = WORDS.index(first), WORDS.index(second)
    part = (one * one + 3 * one * two + 7 * two) % _PARTS
    return _SPLITS[min(part, 2)]


def identifiers(rng: random.Random, split: NameSplit, count: int) -> list[str]:
    """Draw ``count`` identifiers of a split; no word comes twice, so each tells one identifier from
    the others.
    """
    left = list(WORDS)
    drawn: list[str] = []
    while len(drawn) < count:
        first, second = rng.sample(left, 2)
        identifier = f"{first}_{second}"
        if split_of(identifier) == split:
            drawn.append(identifier)
            left = [word for word in left if word not in (first, second)]
    return drawn


def constant(rng: random.Random, split: NameSplit) -> int:
    """Draw a three-digit number that no other split uses."""
    return 300 * _SPLITS.index(split) + rng.randrange(100, 400)
