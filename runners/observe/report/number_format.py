"""Formats numbers for a reader; unknown ones are a dash."""

from __future__ import annotations

import math

UNKNOWN = "–"
_PERCENT = "\u202f%"  # a narrow space that does not break


def format_quantity(number: int, noun: str) -> str:
    """Return a number with its noun: "1 alarm", "2 alarms"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_share(value: float | None) -> str:
    """Return a share as a percentage with enough digits to tell small ones apart."""
    if value is None:
        return UNKNOWN
    percent = 100 * value
    digits = (
        1 if percent == 0 or abs(percent) >= 1 else min(4, 1 - math.floor(math.log10(abs(percent))))
    )
    return f"{percent:.{digits}f}{_PERCENT}"


def format_significant(value: float | None) -> str:
    """Return a number of any size with three significant digits."""
    return UNKNOWN if value is None else f"{value:.3g}"
