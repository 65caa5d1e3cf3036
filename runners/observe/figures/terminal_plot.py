"""Draws curves as text: braille dots for a line, a mark for a point, axes around."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from rich.text import Text

from runners.observe.figures.curves import Curve

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

    def draw(place: tuple[int, int]) -> tuple[str, str]:
        if place in marked:
            return "◆", MARK
        bits = cells.get(place)
        return (chr(0x2800 + bits) if bits else " "), LINE

    return _frame(draw, columns, rows, steps)


COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "white")
_POINTS = 12
"""Points of a curve that are marked each; of a longer one only the last."""


def overlay_rates(curves: Sequence[Curve], *, steps: int, width: int, height: int) -> Text:
    """Draw several curves of rates over each other; points of the first are marked 1, and so on.

    Of marks in one place the last curve's is seen.
    """
    columns, rows = max(width - _LABEL - 1, 4), max(height - 2, 2)
    cells: dict[tuple[int, int], tuple[int, int]] = {}
    marks: dict[tuple[int, int], int] = {}
    for number, curve in enumerate(curves):
        for x, y in _dots(curve, steps, columns * 2, rows * 4):
            bits, _ = cells.get((x // 2, y // 4), (0, 0))
            cells[x // 2, y // 4] = (bits | _DOT[x % 2][y % 4], number)
        marked = curve if len(curve) <= _POINTS else curve[-1:]
        for x, y in _places(marked, steps, columns * 2, rows * 4):
            marks[x // 2, y // 4] = number

    def draw(place: tuple[int, int]) -> tuple[str, str]:
        if place in marks:
            number = marks[place]
            return str(number + 1)[-1], f"bold {COLOURS[number % len(COLOURS)]}"
        bits, number = cells.get(place, (0, 0))
        return (chr(0x2800 + bits) if bits else " "), COLOURS[number % len(COLOURS)]

    return _frame(draw, columns, rows, steps)


def _frame(
    draw: Callable[[tuple[int, int]], tuple[str, str]], columns: int, rows: int, steps: int
) -> Text:
    """Return cells, drawn as (character, style) by (column, row), with axes around."""
    text = Text(no_wrap=True)
    for row in range(rows):
        label = {0: "100%", rows - 1: "0%"}.get(row, "50%" if row == (rows - 1) / 2 else "")
        text.append(f"{label:>{_LABEL}}{'┤' if label else '│'}", AXIS)
        for column in range(columns):
            text.append(*draw((column, row)))
        text.append("\n")
    text.append(f"{'':>{_LABEL}}└{'─' * columns}\n{'':>{_LABEL}} ", AXIS)
    first, middle, last = "0", str(steps // 2) if steps > 1 else "", str(steps)
    at = round(steps // 2 / max(steps, 1) * (columns - 1))  # where its points are drawn
    text.append(f"{first:<{at}}{middle:<{max(columns - at - len(last), 0)}}{last}", AXIS)
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
