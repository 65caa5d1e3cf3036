"""Show what a comparison's tables do not have: curves over each other, and what runs cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from runners.observe.figures import (
    COLOURS,
    ITEMS,
    SOLVE_RATE,
    Curve,
    LabelledTable,
    format_amount,
    overlay_rates,
)
from runners.records.text import make_printable

_HEIGHT = 12
"""Lines of the curves."""
_PRICES = {"price": "total", "per solved": "per_solved_task"}
"""Heading → key of a run's ``cost``: columns that are left out where no run has a price."""


def render_costs(runs: Sequence[Mapping[str, Any]]) -> LabelledTable:
    """Return a table of what each run has used, and of its price where it has prices."""
    priced = any(run["cost"]["total"] is not None for run in runs)
    shown = {item.heading: item.field for item in ITEMS} | (_PRICES if priced else {})

    def build(labels: Sequence[str]) -> Table:
        table = Table(title="used", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
        table.add_column("run", overflow="fold")
        for heading in shown:
            table.add_column(heading, justify="right", no_wrap=True)
        for label, run in zip(labels, runs, strict=True):
            cells = (run["cost"][key] for key in shown.values())
            table.add_row(label, *("–" if x is None else shorten_amount(x) for x in cells))
        return table

    return LabelledTable([make_printable(run["label"]) for run in runs], build)


def shorten_amount(amount: float) -> str:
    """Return an amount in a few characters: 20.5k."""
    if amount < 1e4:
        return format_amount(amount)
    unit, letter = next(
        (unit, letter)
        for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k"))
        if amount >= 0.9995 * unit  # 999,600 has three digits as 1M
    )
    return f"{amount / unit:.3g}{letter}"


@dataclass(frozen=True, slots=True)
class RateCurves:
    """The solve rates of campaigns over their steps, in one picture as wide as the terminal."""

    runs: Sequence[Mapping[str, Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the held-out rates, or those in training where no run has two; or nothing."""
        title, curves = self._choose()
        if not curves:
            return
        steps = max(step for _, curve in curves for step, _ in curve)
        yield Text(f"\n{title}")
        yield overlay_rates(
            [curve for _, curve in curves], steps=steps, width=options.max_width, height=_HEIGHT
        )
        for number, (label, curve) in enumerate(curves):
            line = Text(f"{number + 1}", f"bold {COLOURS[number % len(COLOURS)]}")
            line.append(f"  {make_printable(label)}  {curve[-1][1]:.1%}", "default")
            yield line

    def _choose(self) -> tuple[str, list[tuple[str, Curve]]]:
        held_out = [
            (run["label"], [(rate["step"], rate["value"]) for rate in run["rates"]])
            for run in self.runs
            if not run["benchmark"]
        ]
        if any(len(curve) > 1 for _, curve in held_out):
            return "held-out solve rate over steps", [each for each in held_out if each[1]]
        trained = [(run["label"], run["curves"].get(SOLVE_RATE, [])) for run in self.runs]
        if any(len(curve) > 1 for _, curve in trained):
            return "training solve rate over steps", [each for each in trained if each[1]]
        return "", []
