"""Builds the sections of a report about the solve rates of tasks: training and held-out ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from xml.etree.ElementTree import Element

from runners.evaluation.statistics import wilson_interval
from runners.observe.task_rates import TaskRate
from runners.report.element import Child, make
from runners.report.links import Links
from runners.report.number_format import format_count, format_interval, format_share
from runners.report.report_data import ReportData
from runners.report.scale import Scale
from runners.report.table import list_more, make_details, make_section, make_table

_BINS = ("never", "up to ¼", "up to ½", "up to ¾", "below 1", "always")
"""Solve rates: 0, then quarters with their upper end, the last without it, 1."""
_SHOWN = 100
_DRAWN = 40
"""Steps of one task that are drawn: the last ones."""
_WIDTH, _HEIGHT = 96.0, 20.0
"""Of the picture of a task's rates."""


def build_task_rates(facts: ReportData, links: Links) -> Element | None:
    """Return how many training tasks have which solve rate, and the least solved ones."""
    return _build_section("Training tasks", "step", facts.task_rates, facts.examples, links)


def build_held_out_tasks(facts: ReportData, links: Links) -> Element | None:
    """Return the same of the tasks that evaluations measured."""
    title = "Tasks" if facts.status.benchmark else "Held-out tasks"
    return _build_section(title, "evaluation", facts.held_out_tasks, facts.held_out_examples, links)


def _build_section(
    title: str, when: str, rates: Sequence[TaskRate], examples: Mapping[str, str], links: Links
) -> Element | None:
    if not rates:
        return None
    several = any(len(each.counts) > 1 for each in rates)
    first, last = _count(each.rate for each in rates), _count(each.last_rate for each in rates)
    bins: list[list[Child]] = [
        [name, format_count(first[name]), *([format_count(last[name])] if several else [])]
        for name in _BINS
    ]
    headings = (
        ["solved", f"in all {when}s", f"in its last {when}"] if several else ["solved", "tasks"]
    )
    table = make_table(headings, bins, numbers=(1, 2))
    note = make("p", f"{format_count(len(rates))} tasks were tried.", class_="dim")
    shown = rates[:_SHOWN]
    hardest = make_details(
        "The least solved",
        _list(shown, when, examples, links) if several else _list_once(shown, examples, links),
        list_more(len(rates) - _SHOWN),
        opened=when == "evaluation",  # of these a reader wants the names
    )
    return make_section(title, note, table, hardest)


def _count(rates: Iterable[float]) -> Counter[str]:
    return Counter(find_bin(rate) for rate in rates)


def find_bin(rate: float) -> str:
    """Return the name of a solve rate's bin."""
    return _BINS[-1] if rate >= 1 else _BINS[ceil(rate * 4)]


def _list(
    rates: Sequence[TaskRate], when: str, examples: Mapping[str, str], links: Links
) -> Element:
    columns = ["task", f"{when}s", "graded", "solved", "95 %", f"last {when}", "in it"]
    rows: list[list[Child]] = [
        [
            make("code", each.task_id, class_="name"),
            format_count(each.steps),
            format_count(each.graded),
            format_share(each.rate),
            format_interval(wilson_interval(each.solved, each.graded)),
            str(each.last_step),
            format_share(each.last_rate),
            draw_rates(each.counts),
            _link(each, examples, links),
        ]
        for each in rates
    ]
    return make_table([*columns, f"each {when}", "for example"], rows, numbers=range(1, 7))


def _list_once(rates: Sequence[TaskRate], examples: Mapping[str, str], links: Links) -> Element:
    rows: list[list[Child]] = [
        [
            make("code", each.task_id, class_="name"),
            format_count(each.graded),
            format_share(each.rate),
            format_interval(wilson_interval(each.solved, each.graded)),
            _link(each, examples, links),
        ]
        for each in rates
    ]
    return make_table(
        ["task", "graded", "solved", "95 %", "for example"], rows, numbers=range(1, 4)
    )


def _link(each: TaskRate, examples: Mapping[str, str], links: Links) -> Child:
    rollout = examples.get(each.task_id)
    return None if rollout is None else links.to(rollout)


def draw_rates(counts: Sequence[tuple[int, int, int]]) -> Element:
    """Return a small picture of a task's rates (step, graded, solved) with Wilson's intervals."""
    counts = counts[-_DRAWN:]
    steps = [step for step, _, _ in counts]
    along = Scale(steps[0], max(steps[-1], steps[0] + 1), 3.0, _WIDTH - 3.0)
    up = Scale(0.0, 1.0, _HEIGHT - 3.0, 3.0)
    parts: list[Child] = [
        make(
            "title", "\n".join(f"{step}: {solved} of {graded}" for step, graded, solved in counts)
        ),
        make("line", x1=0, x2=_WIDTH, y1=up.place(0.0), y2=up.place(0.0), class_="grid"),
    ]
    path = []
    for step, graded, solved in counts:
        x, y = along.place(step), up.place(solved / graded)
        low, high = wilson_interval(solved, graded) or (0.0, 1.0)
        ends = f"M{x:.1f} {up.place(low):.1f}V{up.place(high):.1f}"
        parts.append(make("path", d=ends, class_="interval blue"))
        path.append(f"{x:.1f} {y:.1f}")
    parts.append(make("path", d=f"M{'L'.join(path)}", class_="stroke blue"))
    parts.append(make("circle", cx=along.place(steps[-1]), cy=y, r=2.2, class_="fill blue"))
    return make(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        role="img",
        aria_label="solve rates",
        class_="rates",
    )
