"""Builds the sections of a comparison about tasks: the paired test, flips by name, rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from runners.evaluation.statistics import wilson_interval
from runners.report.element import Child, make
from runners.report.number_format import UNKNOWN, format_count, format_interval, format_part
from runners.report.table import list_more, make_details, make_section, make_table

COLOURS = ("blue", "orange", "green", "vermillion", "purple", "sky", "grey", "yellow")
"""Of the runs in their order; those after the eighth are dashed."""
_TASKS = 300
"""Most tasks whose rates are shown."""
_FEW = 30
"""Most tasks of a flip that are listed unfolded."""


def mark_run(number: int) -> Element:
    """Return the mark of a run in the legends, by its place among the runs."""
    dashed = " dashed" if number >= len(COLOURS) else ""
    return make("i", class_=f"mark {COLOURS[number % len(COLOURS)]}{dashed}")


def name_columns(runs: Sequence[Mapping[str, Any]]) -> list[Element]:
    """Return the headings of a column for each run; long names are broken."""
    return [make("span", run["label"], class_="heading") for run in runs]


def build_pairs(
    pairs: Sequence[Mapping[str, Any]],
    tasks: Mapping[str, Sequence[Sequence[int] | None]],
    runs: Sequence[Mapping[str, Any]],
) -> Element | None:
    """Return the paired test of each run against the first, and the flips by name."""
    if not pairs:
        return None
    labels = [run["label"] for run in runs]
    rows: list[list[Child]] = []
    flips: list[Child] = []
    for pair in pairs:
        here = labels.index(pair["run"])
        low, high = pair["interval"]
        rows.append(
            [
                make("span", mark_run(here), pair["run"], class_="name"),
                format_count(pair["tasks"]),
                f"{100 * pair['difference']:+.1f}",
                f"{100 * low:+.1f} to {100 * high:+.1f}",
                f"{pair['p']:.2g}",
                format_count(len(pair["gained"])),
                format_count(len(pair["lost"])),
            ]
        )
        flips += [_flips(pair, what, tasks, here) for what in ("lost", "gained") if pair[what]]
    columns = ["run", "tasks", "difference, points", "95 %", "p", "gained", "lost"]
    note = make(
        "p",
        f"Against {pairs[0]['against']}, over the tasks that both measured: the interval is a "
        "bootstrap over tasks, p is of a two-sided permutation test that flips the signs of their "
        "differences. Gained or lost is a task that most of its rollouts solve in one run only.",
        class_="dim",
    )
    return make_section(
        "Task by task", note, make_table(columns, rows, numbers=range(1, 7)), *flips
    )


def _flips(
    pair: Mapping[str, Any],
    what: str,
    tasks: Mapping[str, Sequence[Sequence[int] | None]],
    here: int,
) -> Element:
    rows: list[list[Child]] = [
        [make("code", name, class_="name"), _rate(tasks[name][0]), _rate(tasks[name][here])]
        for name in pair[what]
    ]
    columns: list[Child] = [
        "task",
        *name_columns([{"label": pair["against"]}, {"label": pair["run"]}]),
    ]
    return list_flips(f"{what.capitalize()} by {pair['run']}", columns, rows)


def list_flips(title: str, columns: Sequence[Child], rows: Sequence[Sequence[Child]]) -> Element:
    """Return a table of gained or lost tasks with their counts in two runs, unfolded if short."""
    table = make_table(columns, rows, numbers=(1, 2))
    return make_details(f"{title}: {len(rows):,}", table, opened=len(rows) <= _FEW)


def _rate(counts: Sequence[int] | None) -> str:
    """Return how many of a task's graded rollouts solve it."""
    return UNKNOWN if counts is None else format_part(counts[1], counts[0])


def build_tasks(
    tasks: Mapping[str, Sequence[Sequence[int] | None]], runs: Sequence[Mapping[str, Any]]
) -> Element | None:
    """Return each task's solve rate in each run's last evaluation, the least solved first."""
    if not tasks:
        return None
    rows: list[list[Child]] = []
    for name, counts in list(tasks.items())[:_TASKS]:
        rows.append(
            [
                make("code", name, class_="name"),
                *(cell for each in counts for cell in _task_cells(each)),
            ]
        )
    columns: list[Child] = [
        "task",
        *(text for name in name_columns(runs) for text in (name, "95 %")),
    ]
    table = make_table(columns, rows, numbers=range(1, len(columns)))
    more = list_more(len(tasks) - _TASKS, "compare --json has all")
    return make_section("Tasks", make_details(f"{len(tasks):,} tasks", table, more))


def _task_cells(counts: Sequence[int] | None) -> tuple[str, str]:
    if counts is None:
        return UNKNOWN, ""
    return _rate(counts), format_interval(wilson_interval(counts[1], counts[0]))
