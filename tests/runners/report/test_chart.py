"""Charts: what is drawn lies within them, and what is not known is not drawn."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.report.chart import HEIGHT, WIDTH, ChartLine, draw_line_chart, draw_stacked_chart
from runners.report.number_format import format_share, format_short, format_significant
from runners.report.scale import Scale, make_value_scale

FINITE = st.floats(-1e9, 1e9)


def drawn(chart: Element | None, classes: str) -> list[Element]:
    assert chart is not None
    return [part for part in chart.iter("path") if classes in (part.get("class") or "")]


def titles(chart: Element | None) -> list[str]:
    assert chart is not None
    return [part.text or "" for part in chart.iter("title")]


@given(st.lists(FINITE, min_size=1), st.booleans())
def test_every_value_lies_within_the_axis_and_so_do_its_ticks(
    values: list[float], log: bool
) -> None:
    scale = make_value_scale(values, 200.0, 10.0, log=log)
    assert scale.low < scale.high
    for value in [*values, *scale.ticks(5)]:
        assert 10.0 <= scale.place(value) <= 200.0
    ticks = scale.ticks(5)
    assert 2 <= len(ticks) <= 12
    assert all(a < b for a, b in pairwise(ticks))


def test_a_higher_value_lies_higher() -> None:
    scale = Scale(1e-6, 1.0, 100.0, 0.0, log=True)
    assert [scale.place(value) for value in (1e-6, 1e-3, 1.0)] == pytest.approx([100, 50, 0])
    assert scale.place(0.0) == 100.0


def test_what_is_not_known_is_a_gap() -> None:
    points = [(1, 0.1), (2, None), (3, 0.3), (4, 0.2)]
    (path,) = drawn(draw_line_chart("x", "unit", [ChartLine("a", points, "blue")]), "stroke")
    assert re.sub(r"[\d. -]", "", path.get("d") or "") == "MML"


def test_zero_has_no_place_on_a_logarithmic_axis() -> None:
    chart = draw_line_chart("x", "unit", [ChartLine("a", [(1, 0.0), (2, 1e-4)], "blue")], log=True)
    assert chart is not None
    assert len(list(chart.iter("circle"))) == 1


def test_nothing_known_is_no_chart() -> None:
    assert draw_line_chart("x", "unit", [ChartLine("a", [(1, None)], "blue")]) is None
    assert draw_line_chart("x", "unit", [ChartLine("a", [(1, 0.0)], "blue")], log=True) is None
    assert draw_stacked_chart("x", "unit", {"a": ("blue", {1: 0.0}), "b": ("red", {})}) is None


@given(
    st.dictionaries(
        st.integers(1, 400), st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1
    )
)
def test_stacked_bars_stay_within_the_drawing(heights: dict[int, tuple[float, float]]) -> None:
    chart = draw_stacked_chart(
        "x",
        "unit",
        {
            "low": ("blue", {step: pair[0] for step, pair in heights.items()}),
            "high": ("orange", {step: pair[1] for step, pair in heights.items()}),
        },
    )
    bars = 0
    for path in drawn(chart, "fill") if chart is not None else []:
        for left, bottom, up in re.findall(r"M([\d.-]+) ([\d.]+)v(-?[\d.]+)", path.get("d") or ""):
            assert 0 <= float(left) <= WIDTH
            assert 0 <= float(bottom) + float(up) <= float(bottom) <= HEIGHT
            bars += 1
    assert bars > 0 or max(map(sum, heights.values())) < 1e-9


def test_each_step_says_its_values() -> None:
    lines = [
        ChartLine("with", [(1, 0.25), (2, 0.5)], "blue"),
        ChartLine("without", [(2, 0.75)], "orange", dashed=True),
    ]
    chart = draw_line_chart("x", "unit", lines, rate=True)
    assert titles(chart) == [
        "step 1\nwith: 25.0\u202f%",
        "step 2\nwith: 50.0\u202f%\nwithout: 75.0\u202f%",
    ]


def test_a_long_run_has_no_more_tooltips_than_one_can_point_at() -> None:
    chart = draw_line_chart(
        "x", "unit", [ChartLine("a", [(step, 1.0) for step in range(5000)], "blue")]
    )
    assert 100 <= len(titles(chart)) <= 200


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0"), (0.5, "50.0"), (1.0, "100.0"), (0.0089, "0.89"), (0.000_012, "0.0012")],
)
def test_small_shares_are_told_from_none(value: float, text: str) -> None:
    assert format_share(value) == f"{text}\u202f%"


def test_figures_are_short() -> None:
    assert [format_short(value) for value in (0.0, 1500.0, 2.5e6, 0.125)] == [
        "0",
        "1.5k",
        "2.5M",
        "0.125",
    ]
    assert [format_significant(value) for value in (None, 1.23456e-7)] == ["–", "1.23e-07"]
