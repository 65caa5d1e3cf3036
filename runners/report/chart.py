"""Draws charts over steps as inline SVG: lines and stacked bars.

A chart has a title with its unit, axes with round values, a legend, and for each step the exact
values as a tooltip. Colours are classes of the page's style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from runners.report.element import Child, make
from runners.report.number_format import (
    format_axis_share,
    format_share,
    format_short,
    format_significant,
)
from runners.report.scale import Scale, make_value_scale

Point = tuple[float, float | None]
"""(step, value); None: not known."""

WIDTH, HEIGHT = 400.0, 210.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 10.0, 10.0, 34.0
_HOVERED = 200
"""Most tooltips of a chart; with more steps, some have none."""
_MARKED = 40
"""Most points that are marked each."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One curve of a chart."""

    name: str
    points: Sequence[Point]
    colour: str
    """A class of the style: ``blue``, ``orange``, …"""
    dashed: bool = False
    ranges: Sequence[tuple[float, float, float]] = ()
    """(step, low, high): intervals of the points."""
    band: bool = False
    """Draw the intervals as one area, not each by itself."""


def draw_line_chart(
    title: str,
    unit: str,
    lines: Sequence[ChartLine],
    *,
    log: bool = False,
    rate: bool = False,
    most: float | None = None,
) -> Element | None:
    """Return a chart of curves, None if none has a value.

    ``rate``: values are shares, shown as percentages; ``most``: the axis goes from 0 to this value.
    """
    lines = [line for line in lines if any(_shown(value, log) for _, value in line.points)]
    if not lines:
        return None
    values = [value for line in lines for _, value in line.points if value is not None]
    values += [end for line in lines for _, low, high in line.ranges for end in (low, high)]
    up = make_value_scale(values if most is None else [most], HEIGHT - _BOTTOM, _TOP, log=log)
    along = _along([step for line in lines for step, _ in line.points])
    parts: list[Child] = _frame(
        along, up, format_axis_share if rate else format_significant if log else format_short
    )
    for line in lines:
        parts += _line(line, along, up, log=log)
    exact = format_share if rate else format_significant
    parts += _tooltips(along, {line.name: dict(line.points) for line in lines}, exact)
    marks = [(line.name, f"{line.colour} {'dashed' if line.dashed else 'line'}") for line in lines]
    return _figure(title, unit, parts, marks if len(lines) > 1 else [])


def draw_stacked_chart(
    title: str, unit: str, parts: Mapping[str, tuple[str, Mapping[int, float]]]
) -> Element | None:
    """Return stacked bars per step from name → (colour, step → height), None if all are empty."""
    parts = {name: part for name, part in parts.items() if any(part[1].values())}
    steps = sorted({step for _, heights in parts.values() for step in heights})
    if not steps:
        return None
    along = _along(steps, bars=True)
    totals = {s: sum(heights.get(s, 0.0) for _, heights in parts.values()) for s in steps}
    up = make_value_scale(totals.values(), HEIGHT - _BOTTOM, _TOP)
    width = 0.8 * min(24.0, (WIDTH - _LEFT - _RIGHT) / (steps[-1] - steps[0] + 1))
    drawn: list[Child] = _frame(along, up, format_short)
    below = dict.fromkeys(steps, 0.0)
    for colour, heights in parts.values():
        path = []
        for step in steps:
            low, high = up.place(below[step]), up.place(below[step] + heights.get(step, 0.0))
            below[step] += heights.get(step, 0.0)
            if low - high > 0.01:
                left = along.place(step) - width / 2
                path.append(f"M{left:.1f} {low:.1f}v{high - low:.1f}h{width:.1f}v{low - high:.1f}z")
        drawn.append(make("path", d="".join(path), class_=f"fill {colour}"))
    values: dict[str, Mapping[float, float | None]] = {
        name: {float(step): value for step, value in heights.items()}
        for name, (_, heights) in parts.items()
    }
    drawn += _tooltips(along, values, format_short)
    return _figure(
        title, unit, drawn, [(name, f"{colour} box") for name, (colour, _) in parts.items()]
    )


def make_legend(marks: Sequence[tuple[str, str]]) -> Element:
    """Return a legend from pairs of a name and the classes of its mark."""
    items = (make("li", make("i", class_=f"mark {classes}"), name) for name, classes in marks)
    return make("ul", *items, class_="legend")


def make_label(text: str, x: float, y: float, anchor: str = "middle", **more: object) -> Element:
    """Return a text element of a drawing."""
    return make("text", text, x=x, y=y, text_anchor=anchor, **more)


def _figure(
    title: str, unit: str, parts: Sequence[Child], marks: Sequence[tuple[str, str]]
) -> Element:
    head = make("figcaption", make("b", title), " ", make("span", unit, class_="dim"))
    drawing = make("svg", *parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="img", aria_label=title)
    return make("figure", head, drawing, make_legend(marks) if marks else None, class_="chart")


def _shown(value: float | None, log: bool) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def _along(steps: Sequence[float], *, bars: bool = False) -> Scale:
    low, high = min(steps), max(steps)
    if bars:
        low, high = low - 0.6, high + 0.6
    elif low == high:
        low, high = low - 1, high + 1
    return Scale(low, high, _LEFT, WIDTH - _RIGHT)


def _frame(along: Scale, up: Scale, say: Callable[[float], str]) -> list[Child]:
    """Return grid and axes."""
    left, right, bottom = _LEFT, WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts: list[Child] = []
    for value in up.ticks(5):
        y = up.place(value)
        parts.append(make("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(make_label(say(value), left - 5, y + 3.5, "end"))
    for value in along.ticks(6):
        if value == round(value) and value >= 0:
            parts.append(make_label(f"{value:.0f}", along.place(value), bottom + 14))
    parts.append(make("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(make_label("step", (left + right) / 2, HEIGHT - 4, class_="name"))
    return parts


def _line(line: ChartLine, along: Scale, up: Scale, *, log: bool) -> list[Child]:
    parts: list[Child] = []
    if line.band and line.ranges:
        upper = [f"{along.place(step):.1f} {up.place(high):.1f}" for step, _, high in line.ranges]
        lower = [f"{along.place(step):.1f} {up.place(low):.1f}" for step, low, _ in line.ranges]
        area = f"M{'L'.join([*upper, *reversed(lower)])}z"
        parts.append(make("path", d=area, class_=f"band {line.colour}"))
    for step, low, high in () if line.band else line.ranges:
        x = along.place(step)
        ends = f"M{x:.1f} {up.place(low):.1f}V{up.place(high):.1f}"
        ends += "".join(f"M{x - 4:.1f} {up.place(end):.1f}h8" for end in (low, high))
        parts.append(make("path", d=ends, class_=f"interval {line.colour}"))
    places: list[tuple[float, float]] = []
    path, pen = [], "M"
    for step, value in line.points:
        if not _shown(value, log) or value is None:
            pen = "M"  # an unknown value leaves a gap
            continue
        places.append((along.place(step), up.place(value)))
        path.append(f"{pen}{places[-1][0]:.1f} {places[-1][1]:.1f}")
        pen = "L"
    classes = f"stroke {line.colour}{' dashed' if line.dashed else ''}"
    parts.append(make("path", d="".join(path), class_=classes))
    if len(places) <= _MARKED:
        parts += (
            make("circle", cx=x, cy=y, r=2.5, class_=f"fill {line.colour}") for x, y in places
        )
    return parts


def _tooltips(
    along: Scale,
    series: Mapping[str, Mapping[float, float | None]],
    say: Callable[[float], str],
) -> list[Child]:
    steps = sorted({step for values in series.values() for step in values})
    every = math.ceil(len(steps) / _HOVERED)
    parts: list[Child] = []
    shown = steps[::every]
    for index, step in enumerate(shown):
        left = along.place((shown[index - 1] + step) / 2) if index else _LEFT
        last = index == len(shown) - 1
        right = WIDTH - _RIGHT if last else along.place((step + shown[index + 1]) / 2)
        lines = [f"step {step:g}"]
        for name, values in series.items():
            value = values.get(step)
            if value is not None:
                lines.append(f"{name}: {say(value)}")
        area = make("rect", make("title", "\n".join(lines)), x=left, y=_TOP, class_="hover")
        area.set("width", f"{max(right - left, 0.5):.1f}")
        area.set("height", f"{HEIGHT - _TOP - _BOTTOM:.1f}")
        parts.append(area)
    return parts
