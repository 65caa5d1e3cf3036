"""Writes runs side by side as one page: results, curves over each other, tasks, flips, keys."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element

from runners.observe.cost import ITEMS, format_price
from runners.observe.curves import REWARD, SOLVE_RATE, STEP_S
from runners.observe.dashboard import format_duration
from runners.observe.training_counts import count_trained
from runners.report.chart import ChartLine, draw_line_chart
from runners.report.comparison_tasks import (
    COLOURS,
    build_pairs,
    build_tasks,
    mark_run,
    name_columns,
)
from runners.report.cost_section import format_used
from runners.report.document import render_document, write_document
from runners.report.element import Child, make
from runners.report.number_format import (
    UNKNOWN,
    format_count,
    format_interval,
    format_share,
)
from runners.report.page import NAME
from runners.report.table import make_section, make_table
from runners.store.json_text import dumps


def write_comparison(found: Mapping[str, Any], run_dirs: Sequence[Path], out: Path) -> None:
    """Write the page of ``compare_runs``' result; raises ReportError."""
    write_document(out, render_comparison_page(found, run_dirs, out), "--html")


def render_comparison_page(found: Mapping[str, Any], run_dirs: Sequence[Path], out: Path) -> str:
    """Return the page, which will lie at ``out``."""
    runs = found["runs"]
    sections = [
        _build_results(runs, found["seeds"]),
        _build_curves(runs),
        build_pairs(found["pairs"], found["tasks"], runs),
        build_tasks(found["tasks"], runs),
        _build_costs(runs),
        _build_differences(found["differences"], runs),
    ]
    title = f"{len(runs)} runs"
    return render_document(
        f"{title} · comparison", _build_head(title, runs, run_dirs, out), sections
    )


def _build_head(
    title: str, runs: Sequence[Mapping[str, Any]], run_dirs: Sequence[Path], out: Path
) -> Element:
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime())
    lines = [
        make(
            "li",
            mark_run(number),
            run["label"],
            make("span", f" {_describe_state(run)} ", class_="dim"),
            _link_report(run_dir, out),
        )
        for number, (run, run_dir) in enumerate(zip(runs, run_dirs, strict=True))
    ]
    return make(
        "header",
        make("p", "comparison", class_="dim"),
        make("h1", title),
        make("ul", *lines, class_="runs"),
        make("p", f"as of {when}", class_="dim small"),
    )


def _describe_state(run: Mapping[str, Any]) -> str:
    what = f"evaluation of {run['benchmark']}, " if run["benchmark"] else ""
    return f"{what}{run['state']}"


def _link_report(run_dir: Path, out: Path) -> Element | None:
    """Return a link to a run's own report, if it has been written."""
    report = run_dir.resolve() / NAME
    if not report.is_file() or report == out.resolve():
        return None
    return make("a", "report", href=quote(os.path.relpath(report, out.resolve().parent)))


def _build_results(
    runs: Sequence[Mapping[str, Any]], seeds: Sequence[Mapping[str, Any]]
) -> Element:
    rows = [_result_row(run, mark_run(number)) for number, run in enumerate(runs)]
    rows += [_result_row(pool, None) for pool in seeds]
    columns = ["run", "steps", "held-out", "95 %", "reward", "trained tokens", "k3", "time", "end"]
    more = [make("p", text, class_="dim") for text in _pass_rates(runs)]
    return make_section("Results", make_table(columns, rows, numbers=range(1, 8)), *more)


def _result_row(run: Mapping[str, Any], mark: Element | None) -> list[Child]:
    rates = [rate for rate in (run["eval"]["first"], run["eval"]["last"]) if rate is not None]
    return [
        make("span", mark, run["label"], class_="name"),
        format_count(run["steps"]),
        " → ".join(map(format_share, rates)) or UNKNOWN,
        format_interval(run["eval"]["interval"]),
        UNKNOWN if run["reward"] is None else f"{run['reward']:.3f}",
        format_count(count_trained(run["tokens"])),
        UNKNOWN if run["k3"] is None else f"{run['k3']:.1e}",
        format_duration(run["wall_s"]),
        run["state"],
    ]


def _pass_rates(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield pass@k of the evaluations among the runs."""
    for run in runs:
        if run["benchmark"] and run["rates"]:
            shown = [
                f"{rate['name']} {format_share(rate['value'])} "
                f"({format_interval(rate['interval'])})"
                for rate in run["rates"]
            ]
            yield f"{run['label']}: {', '.join(shown)}"


def _build_curves(runs: Sequence[Mapping[str, Any]]) -> Element | None:
    def lines(metric: str) -> list[ChartLine]:
        return [
            _line(
                number, run, run["curves"].get(metric, ()), run["intervals"].get(metric, ()), True
            )
            for number, run in enumerate(runs)
        ]

    held_out = [
        _line(
            number,
            run,
            [(rate["step"], rate["value"]) for rate in run["rates"]],
            [(rate["step"], *rate["interval"]) for rate in run["rates"]],
        )
        for number, run in enumerate(runs)
        if not run["benchmark"]
    ]
    interval = "with 95 % interval (Wilson)"
    charts = [
        draw_line_chart("Held-out solve rate", interval, held_out, rate=True, most=1.0),
        draw_line_chart("Training solve rate", interval, lines(SOLVE_RATE), rate=True, most=1.0),
        draw_line_chart("Mean reward", "graded rollouts", lines(REWARD)),
        draw_line_chart("Trained tokens", "per step", lines("tokens/trained")),
        draw_line_chart("Sampling speed", "tokens/s while rolling out", lines("tokens/per_s")),
        draw_line_chart("Time of a step", "seconds", lines(STEP_S)),
        draw_line_chart("Training against rollout", "k3", lines("policy/k3"), log=True),
    ]
    shown = [chart for chart in charts if chart is not None]
    return make_section("Curves", make("div", *shown, class_="charts")) if shown else None


def _line(
    number: int,
    run: Mapping[str, Any],
    points: Sequence[tuple[float, float]],
    ranges: Sequence[tuple[float, float, float]],
    band: bool = False,
) -> ChartLine:
    return ChartLine(
        run["label"],
        points,
        COLOURS[number % len(COLOURS)],
        dashed=number >= len(COLOURS),
        ranges=ranges,
        band=band,
    )


def _build_costs(runs: Sequence[Mapping[str, Any]]) -> Element:
    rows: list[list[Child]] = [
        [item.name, *(format_used(run["cost"][item.field]) for run in runs)] for item in ITEMS
    ]
    rows.append(["tasks solved", *(format_used(run["cost"]["tasks_solved"]) for run in runs)])
    for name, key in (("price", "total"), ("price of a solved task", "per_solved_task")):
        if any(run["cost"][key] is not None for run in runs):
            prices = [run["cost"][key] for run in runs]
            rows.append([name, *(UNKNOWN if x is None else format_price(x) for x in prices)])
    columns: list[Child] = ["", *name_columns(runs)]
    return make_section("Cost", make_table(columns, rows, numbers=range(1, len(columns))))


def _build_differences(
    differences: Mapping[str, Sequence[Any]], runs: Sequence[Mapping[str, Any]]
) -> Element:
    if not differences:
        text = make("p", "Their configurations are the same.", class_="good")
        return make_section("Different keys", text)
    rows: list[list[Child]] = [
        [
            make("code", key),
            *(
                UNKNOWN if each is None else make("code", dumps(each), class_="message")
                for each in values
            ),
        ]
        for key, values in differences.items()
    ]
    columns: list[Child] = ["key", *name_columns(runs)]
    return make_section("Different keys", make_table(columns, rows))
