"""Maps values to positions on an axis, and chooses the values written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_LEAST = 1e-30
"""Smaller values are rounding errors and count as zero."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear or logarithmic axis: ``low`` lies at position ``start``, ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Return the position of a value; values beyond an end lie on that end."""
        low, high, at = (
            (math.log10(self.low), math.log10(self.high), math.log10(max(value, self.low)))
            if self.log
            else (self.low, self.high, value)
        )
        part = min(max((at - low) / (high - low), 0.0), 1.0)
        return self.start + part * (self.end - self.start)

    def ticks(self, about: int) -> list[float]:
        """Return about ``about`` round values."""
        if self.log:
            least, most = round(math.log10(self.low)), round(math.log10(self.high))
            every = max(1, math.ceil((most - least) / about))
            return [10.0**power for power in range(least, most + 1, every)]
        step = round_step((self.high - self.low) / about)
        least, most = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(least, most + 1)]


def round_step(least: float) -> float:
    """Return the next of 1, 2, 5, 10, … times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def make_value_scale(
    values: Iterable[float], start: float, end: float, *, log: bool = False
) -> Scale:
    """Return an axis with round ends that holds all values, and zero unless it is logarithmic."""
    known = [value for value in values if math.isfinite(value) and (value > _LEAST or not log)]
    if log:
        least = math.floor(math.log10(min(known, default=0.1)))
        most = max(math.ceil(math.log10(max(known, default=1.0))), least + 1)
        return Scale(10.0**least, 10.0**most, start, end, log=True)
    low, high = min([0.0, *known]), max([0.0, *known])
    if high - low < _LEAST:
        return Scale(low, low + 1.0, start, end)
    step = round_step((high - low) / 4)
    return Scale(math.floor(low / step) * step, math.ceil(high / step - 1e-9) * step, start, end)
