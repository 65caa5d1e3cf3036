"""Builds the section on routing replay: capture, replay, and the mismatch with and without it."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import Element

from runners.observe.curves import metric_points
from runners.report.chart import ChartLine, draw_line_chart
from runners.report.element import Child, make
from runners.report.number_format import (
    UNKNOWN,
    format_count,
    format_quantity,
    format_share,
    format_significant,
)
from runners.report.report_data import ReportData
from runners.report.table import make_details, make_section, make_table
from runners.store.run_store import EventRow
from runners.trajectory.routing import RoutingError


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    """After ``r3/``."""
    meaning: str
    rate: bool = False


_METRICS = (
    _Metric("captured", "Share of the tokens whose experts came with the rollout.", rate=True),
    _Metric("replayed", "Share of the tokens on which training was made to use them.", rate=True),
    _Metric(
        "disagree_slot",
        "Share of the replayed choices that training itself would have made otherwise.",
        rate=True,
    ),
    _Metric("disagree_token", "Share of the tokens with at least one such choice.", rate=True),
    _Metric(
        "disagree_sample_max", "Largest share of a sample's replayed choices like that.", rate=True
    ),
    _Metric("k1", "Mean difference of logprobs, sampling minus training: its sign is a bias."),
    _Metric("k3", "How far training is from the rollout, with replay (an estimate of KL)."),
    _Metric("k3_native", "The same without replay, measured in a shadow forward."),
    _Metric("p999_abs", "The difference of logprobs that one token in a thousand exceeds."),
    _Metric("p999_abs_native", "The same without replay."),
    _Metric("F_1.1", "Share of tokens whose probabilities differ by over 10 %.", rate=True),
    _Metric("F_1.1_native", "The same without replay.", rate=True),
    _Metric(
        "F_2", "Share of tokens whose probabilities differ by more than a factor of 2.", rate=True
    ),
    _Metric(
        "routing_share",
        "Part of the mismatch that routing explains: 1 − k3 / k3 native.",
        rate=True,
    ),
    _Metric("gate_grad_norm", "Norm of the routers' gradient: they still learn."),
    _Metric("invalid_rows", "Tokens without experts of their own; training's router chose there."),
    _Metric(
        "refused_samples", "Samples whose routing could not be true or their own; they are masked."
    ),
)
_WHOLE = {"invalid_rows", "refused_samples"}


def build_routing(facts: ReportData) -> Element | None:
    """Return the section, None if the run does not replay routing."""
    if not facts.routing:
        return None
    mode = facts.kind("routing_replay")
    steps = [step for step in facts.steps if "r3/k3" in step]
    means = {
        "rollout": "Training uses the experts that inference chose, token by token (R3).",
        "recompute": "The experts of training's first pass stay for all updates of a step (R2).",
    }
    intro = make("p", make("code", f"routing_replay={mode}"), " ", means.get(mode, ""))
    if not steps:
        return make_section(
            "Routing replay", intro, make("p", "No step has ended yet.", class_="dim")
        )
    return make_section(
        "Routing replay",
        intro,
        _alarms(facts),
        make("div", *_charts(facts), class_="charts"),
        make_table(
            ["metric", "mean", "first", "last", "meaning"],
            [_row(metric, steps) for metric in _METRICS],
            numbers=range(1, 4),
        ),
        make_details("Each step", _each(steps)),
    )


def _charts(facts: ReportData) -> list[Element]:
    def curve(label: str, name: str, colour: str, *, dashed: bool = False) -> ChartLine:
        return ChartLine(label, metric_points(facts.steps, f"r3/{name}"), colour, dashed)

    def pair(name: str) -> list[ChartLine]:
        native = [
            point
            for point in metric_points(facts.steps, f"r3/{name}_native")
            if point[1] is not None
        ]
        return [
            curve("with replay", name, "blue"),
            ChartLine("without", native, "vermillion", dashed=True),
        ]

    charts = [
        draw_line_chart("Mismatch", "k3 estimate of KL", pair("k3"), log=True),
        draw_line_chart("Its tail", "99.9th percentile of |Δ logprob|", pair("p999_abs"), log=True),
        draw_line_chart("Tokens off by over 10 %", "F(1.1)", pair("F_1.1"), rate=True),
        draw_line_chart(
            "Choices training would not make",
            "share of what was replayed",
            [
                curve("tokens", "disagree_token", "orange"),
                curve("slots", "disagree_slot", "blue", dashed=True),
            ],
            rate=True,
        ),
        draw_line_chart(
            "Coverage",
            "share of tokens",
            [
                curve("captured", "captured", "blue"),
                curve("replayed", "replayed", "orange", dashed=True),
            ],
            rate=True,
            most=1.0,
        ),
        draw_line_chart(
            "Gradient of the routers", "norm", [curve("norm", "gate_grad_norm", "blue")], log=True
        ),
    ]
    return [chart for chart in charts if chart is not None]


def _alarms(facts: ReportData) -> Element:
    """Return the findings of the self-check, which name layer and sample."""
    found: list[Child] = [
        make("li", make("code", _name_culprit(event)), f" {event.data.get('reason')}")
        for event in facts.events
        if event.kind in ("routing_refused", "routing_fault") or _is_alarm(event)
    ]
    status = facts.status
    # other exit codes concern services: a router that is gone says nothing about routing
    if status.exit_code == RoutingError.exit_code and "rout" in status.message:
        found.append(make("li", "It ended the run: ", status.message))
    if not found:
        return make("p", "✓ The self-check of each step found nothing wrong.", class_="good")
    return make(
        "div", make("b", format_quantity(len(found), "alarm")), make("ul", *found), class_="alarms"
    )


def _name_culprit(event: EventRow) -> str:
    """Return the rollout that an alarm is about, or the step if it is about none alone."""
    if event.kind == "routing_fault":
        return f"step {event.data.get('step')}"
    return str(event.data.get("rollout_id"))


def _is_alarm(event: EventRow) -> bool:
    """Return whether a rollout's samples could not be made because of its routing."""
    return event.kind == "unbuilt" and str(event.data.get("reason")).startswith("RoutingError")


def _row(metric: _Metric, steps: list[dict[str, float | None]]) -> list[Child]:
    values = [step.get(f"r3/{metric.name}") for step in steps]
    known = [value for value in values if value is not None]
    if not known:
        return [make("code", metric.name), UNKNOWN, UNKNOWN, UNKNOWN, metric.meaning]
    cells = (sum(known) / len(known), known[0], known[-1])
    return [make("code", metric.name), *(_format(metric, cell) for cell in cells), metric.meaning]


def _format(metric: _Metric, value: float | None) -> str:
    if metric.name in _WHOLE:
        return format_count(value)
    return format_share(value) if metric.rate else format_significant(value)


def _each(steps: list[dict[str, float | None]]) -> Element:
    return make_table(
        ["step", *(metric.name for metric in _METRICS)],
        [
            [
                format_count(step["step"]),
                *(_format(each, step.get(f"r3/{each.name}")) for each in _METRICS),
            ]
            for step in steps
        ],
        numbers=range(len(_METRICS) + 1),
    )
