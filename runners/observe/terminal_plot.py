"""Draws curves as text: braille dots for a line, a mark for a point, axes around."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rich.text import Text

from runners.observe.curves import Curve

_DOT = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot of a braille cell (U+2800 + bits), by column and row."""
_LABEL = 5
"""Columns of the y axis."""

LINE, MARK, AXIS = "cyan", "bold yellow", "bright_black"


def plot_rates(line: Curve, marks: Curve, *, steps: int, width: int, height: int) -> Text:
    """Draw rates (0 to 1) over steps 0 to ``steps``, ``width`` by ``height`` characters in all."""
    columns, rows = max(width - _LABEL - 1, 4), max(height - 2, 2)
    cells: dict[tuple[int, int], int] = {}
    for x, y in _dots(line, steps, columns * 2, rows * 4):
        cells[x // 2, y // 4] = cells.get((x // 2, y // 4), 0) | _DOT[x % 2][y % 4]
    marked = {(x // 2, y // 4) for x, y in _places(marks, steps, columns * 2, rows * 4)}
    text = Text(no_wrap=True)
    for row in range(rows):
        label = {0: "100%", rows - 1: "0%"}.get(row, "50%" if row == (rows - 1) / 2 else "")
        text.append(f"{label:>{_LABEL}}{'┤' if label else '│'}", AXIS)
        for column in range(columns):
            if (column, row) in marked:
                text.append("◆", MARK)
            elif bits := cells.get((column, row)):
                text.append(chr(0x2800 + bits), LINE)
            else:
                text.append(" ")
        text.append("\n")
    text.append(f"{'':>{_LABEL}}└{'─' * columns}\n{'':>{_LABEL}} ", AXIS)
    first, middle, last = "0", str(steps // 2), str(steps)
    half = columns // 2
    text.append(f"{first:<{half}}{middle:<{max(columns - half - len(last), 0)}}{last}", AXIS)
    return text


def _places(curve: Curve, steps: int, width: int, height: int) -> list[tuple[int, int]]:
    return [
        (
            round(min(max(step / max(steps, 1), 0.0), 1.0) * (width - 1)),
            round((1 - min(max(rate, 0.0), 1.0)) * (height - 1)),
        )
        for step, rate in curve
    ]


def _dots(curve: Curve, steps: int, width: int, height: int) -> Iterator[tuple[int, int]]:
    places = _places(curve, steps, width, height)
    yield from places
    for (x0, y0), (x1, y1) in pairwise(places):
        length = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(length):
            yield round(x0 + (x1 - x0) * i / length), round(y0 + (y1 - y0) * i / length)
