"""Draw from several sets of tasks by their weights.

Unit tasks of a proportionate schedule on one processor (Pfair: Baruah, Cohen, Plaxton and Varvel,
Algorithmica 15, 1996), the earliest deadline first. Invariant: after any number n of draws each set
has been drawn n · weight / sum of weights times, give or take less than one; the draws are a
function of the weights alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from math import lcm


def draw_sets(weights: Sequence[float]) -> Iterator[int]:
    """Yield the index of the set of draw 0, 1, …, without end."""
    exact = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(weight.denominator for weight in exact))
    shares = [int(weight * scale) for weight in exact]
    total, drawn, number = sum(shares), [0] * len(shares), 0
    while True:
        # The (d+1)-th draw of a set may come when its share of the draws exceeds d, and has to come
        # before that exceeds d + 1.
        ready = [i for i, share in enumerate(shares) if drawn[i] * total < (number + 1) * share]
        chosen = min(ready, key=lambda i: -(-(drawn[i] + 1) * total // shares[i]))
        drawn[chosen] += 1
        number += 1
        yield chosen


class Draws:
    """The draws of a mixture, by their numbers; they are kept, since each follows from the last."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._source = draw_sets(weights)
        self._drawn = [0] * len(weights)
        self._known: list[tuple[int, int]] = []

    def __getitem__(self, number: int) -> tuple[int, int]:
        """Return the set of a draw, and how often that set was drawn before."""
        while len(self._known) <= number:
            chosen = next(self._source)
            self._known.append((chosen, self._drawn[chosen]))
            self._drawn[chosen] += 1
        return self._known[number]


@cache
def draws(weights: tuple[float, ...]) -> Draws:
    """Return the draws of a mixture."""
    return Draws(weights)
