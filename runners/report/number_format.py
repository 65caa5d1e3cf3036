"""Formats numbers for a reader; unknown ones are a dash."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "–"
_PERCENT = "\u202f%"  # a narrow space that does not break


def format_count(value: float | None) -> str:
    """Return a whole number with thousands separated."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def format_quantity(number: int, noun: str) -> str:
    """Return a number with its noun: "1 alarm", "2 alarms"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_part(part: int, whole: int) -> str:
    """Return how many of a whole: "2 of 3"."""
    return f"{part:,} of {whole:,}"


def format_share(value: float | None) -> str:
    """Return a share as a percentage with enough digits to tell small ones apart."""
    if value is None:
        return UNKNOWN
    percent = 100 * value
    digits = (
        1 if percent == 0 or abs(percent) >= 1 else min(4, 1 - math.floor(math.log10(abs(percent))))
    )
    return f"{percent:.{digits}f}{_PERCENT}"


def format_axis_share(value: float) -> str:
    """Return a share as a percentage of at most three digits, for an axis."""
    return f"{100 * value:.3g}{_PERCENT}"


def format_significant(value: float | None) -> str:
    """Return a number of any size with three significant digits."""
    return UNKNOWN if value is None else f"{value:.3g}"


def format_interval(interval: Sequence[float] | None) -> str:
    """Return an interval of a rate, in per cent."""
    return UNKNOWN if interval is None else f"{100 * interval[0]:.0f}–{100 * interval[1]:.0f} %"


def format_seconds(value: float | None) -> str:
    """Return seconds with two or three significant digits."""
    if value is None:
        return UNKNOWN
    return (
        f"{value:.0f} s" if value >= 100 else f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"
    )


def format_short(value: float) -> str:
    """Return a number of at most three digits and k, M or G, for an axis."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
