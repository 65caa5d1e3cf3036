"""Identifiers that never cross a split.

An identifier is two words, ``copper_maple``. Every ordered pair of words belongs to exactly one
split, so no package, module, function, argument or constant of one split can occur in another,
while the single words are common to all of them.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import permutations
from typing import Literal

NameSplit = Literal["train", "held_out", "bootstrap"]
"""``bootstrap``: the names that demonstrations use; no task of either split has them."""

_SPLITS: tuple[NameSplit, ...] = ("train", "held_out", "bootstrap")

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


@cache
def _splits() -> dict[str, NameSplit]:
    """Deal out every identifier: a tenth to each split of tasks, the rest to demonstrations.

    A policy warmed up on fewer learns which words never go together instead of how to copy a name.
    """
    pairs = [f"{first}_{second}" for first, second in permutations(WORDS, 2)]
    random.Random("splits").shuffle(pairs)
    share = len(pairs) // 10
    return {
        pair: "train" if place < share else "held_out" if place < 2 * share else "bootstrap"
        for place, pair in enumerate(pairs)
    }


def split_of(identifier: str) -> NameSplit:
    """Return the one split an identifier belongs to."""
    return _splits()[identifier.lower()]


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
