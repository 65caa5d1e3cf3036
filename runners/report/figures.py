"""Numbers as a person reads them; a dash for what is not known."""

from __future__ import annotations

import math

UNKNOWN = "–"
_PERCENT = "\u202f%"  # a narrow space that does not break


def count(value: float | None) -> str:
    """Return a whole number with thousands separated."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def several(number: int, noun: str) -> str:
    """Return how many of a thing there are: "1 alarm", "2 alarms"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def share(value: float | None) -> str:
    """Return a share as a percentage that tells small ones apart."""
    if value is None:
        return UNKNOWN
    percent = 100 * value
    digits = (
        1 if percent == 0 or abs(percent) >= 1 else min(4, 1 - math.floor(math.log10(abs(percent))))
    )
    return f"{percent:.{digits}f}{_PERCENT}"


def whole_share(value: float) -> str:
    """Return a share as an axis has room for it."""
    return f"{100 * value:.3g}{_PERCENT}"


def small(value: float | None) -> str:
    """Return a number of any size with three digits."""
    return UNKNOWN if value is None else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """Return seconds with a digit that matters."""
    if value is None:
        return UNKNOWN
    return (
        f"{value:.0f} s" if value >= 100 else f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"
    )


def short(value: float) -> str:
    """Return a number as an axis has room for it."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
