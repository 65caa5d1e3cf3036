"""Builds the section of a report about the solve rates of the training tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil
from xml.etree.ElementTree import Element

from runners.evaluation.statistics import wilson_interval
from runners.observe.task_rates import TaskRate
from runners.report.element import Child, make
from runners.report.number_format import format_count, format_share
from runners.report.report_data import ReportData
from runners.report.table import make_details, make_section, make_table

_BINS = ("never", "up to ¼", "up to ½", "up to ¾", "below 1", "always")
"""Solve rates: 0, then quarters with their upper end, the last without it, 1."""
_SHOWN = 100


def build_task_rates(facts: ReportData) -> Element | None:
    """Return how many training tasks have which solve rate, and the least solved ones."""
    rates = facts.task_rates
    if not rates:
        return None
    first, last = _count(each.rate for each in rates), _count(each.last_rate for each in rates)
    whole: list[list[Child]] = [
        [name, format_count(first[name]), format_count(last[name])] for name in _BINS
    ]
    table = make_table(["solved", "in all steps", "in its last step"], whole, numbers=(1, 2))
    note = make("p", f"{format_count(len(rates))} tasks were tried.", class_="dim")
    hardest = make_details("The least solved", _list(rates[:_SHOWN]))
    return make_section("Training tasks", note, table, hardest)


def _count(rates: Iterable[float]) -> Counter[str]:
    return Counter(find_bin(rate) for rate in rates)


def find_bin(rate: float) -> str:
    """Return the name of a solve rate's bin."""
    return _BINS[-1] if rate >= 1 else _BINS[ceil(rate * 4)]


def _between(each: TaskRate) -> str:
    """Return Wilson's interval of a task's solve rate over all its steps."""
    low, high = wilson_interval(each.solved, each.graded) or (0.0, 1.0)
    return f"{100 * low:.0f}–{100 * high:.0f} %"


def _list(rates: Sequence[TaskRate]) -> Element:
    return make_table(
        ["task", "steps", "graded", "solved", "95 %", "last step", "in it"],
        [
            [
                make("code", each.task_id),
                format_count(each.steps),
                format_count(each.graded),
                format_share(each.rate),
                _between(each),
                str(each.last_step),
                format_share(each.last_rate),
            ]
            for each in rates
        ],
        numbers=range(1, 7),
    )
