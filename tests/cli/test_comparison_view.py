"""The curves of a comparison: which rates they are, which points are marked; short amounts."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from cli.comparison_view import RateCurves, shorten_amount
from runners.observe.figures.curves import SOLVE_RATE


def make_run(label: str, held_out: int, trained: int, benchmark: str | None = None) -> Any:
    """Return the document of a run with so many evaluations and finished steps."""
    return {
        "label": label,
        "benchmark": benchmark,
        "rates": [{"step": step, "value": 0.5} for step in range(held_out)],
        "curves": {SOLVE_RATE: [(step, 0.5) for step in range(1, trained + 1)]},
    }


def show(*runs: Any) -> list[str]:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(RateCurves(runs))
    return capture.get().splitlines()


def test_without_a_second_evaluation_the_rates_are_those_in_training() -> None:
    assert show(make_run("a", 2, 3), make_run("b", 1, 3))[1] == "held-out solve rate over steps"
    assert show(make_run("a", 1, 3), make_run("b", 1, 1))[1] == "training solve rate over steps"
    assert show(make_run("a", 1, 1), make_run("b", 0, 0)) == []


def test_pass_rates_of_an_evaluation_are_no_curve() -> None:
    shown = show(make_run("a", 2, 2), make_run("measured", 4, 0, "bugfix"))
    assert not any("measured" in line for line in shown)
    assert show(make_run("measured", 4, 0, "bugfix")) == []


def test_of_a_long_curve_only_the_last_point_is_marked() -> None:
    marks = [
        sum(line.count("1", 5) for line in show(make_run("a", points, 0))[2:12])
        for points in (12, 13)
    ]
    assert marks == [12, 1]


@pytest.mark.parametrize(
    ("amount", "short"),
    [(0.0332, "0.0332"), (9999, "9,999"), (20480.5, "20.5k"), (999_600, "1M"), (1.2345e9, "1.23G")],
)
def test_a_large_amount_has_three_digits_and_a_letter(amount: float, short: str) -> None:
    assert shorten_amount(amount) == short
