"""A table of runs, each with a label: beside its figures if the terminal is wide enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 100_000
"""Columns of a terminal in which every table fits."""


@dataclass(frozen=True, slots=True)
class LabelledTable:
    """Rows, or columns, with a label each. Labels name settings and are long: where they do not fit
    whole there are numbers, and the labels are listed below.
    """

    labels: Sequence[str]
    build: Callable[[Sequence[str]], Table]
    """Returns the table with these texts in its first column, or as headings."""

    @property
    def whole(self) -> Table:
        """The table with the labels in it."""
        return self.build(self.labels)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what fits into the terminal."""
        needed = Measurement.get(console, options.update(max_width=_ANY_WIDTH), self.whole).maximum
        if needed <= options.max_width:
            yield self.whole
            return
        numbers = [str(number) for number in range(1, len(self.labels) + 1)]
        yield self.build(numbers)
        below = Table.grid(padding=(0, 2, 0, 0))
        below.add_column(justify="right", no_wrap=True)
        below.add_column(overflow="fold")
        for number, label in zip(numbers, self.labels, strict=True):
            below.add_row(number, Text(label))
        yield below
