"""Routing replay in a report: what was captured, what was replayed, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import Element

from runners.observe.curves import metric_points
from runners.report.chart import Line, line_chart
from runners.report.element import Child, make
from runners.report.facts import Facts
from runners.report.figures import UNKNOWN, count, several, share, small
from runners.report.table import folded, section, table
from runners.store.run_store import EventRow
from runners.trajectory.routing import RoutingError


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    """After ``r3/``."""
    says: str
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
    _Metric("refused_samples", "Samples whose routing could not be true; they are masked."),
)
_WHOLE = {"invalid_rows", "refused_samples"}


def routing(facts: Facts) -> Element | None:
    """Return the section; None if the run does not replay routing."""
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
        return section("Routing replay", intro, make("p", "No step has ended yet.", class_="dim"))
    return section(
        "Routing replay",
        intro,
        _alarms(facts),
        make("div", *_charts(facts), class_="charts"),
        table(
            ["metric", "mean", "first", "last", "what it says"],
            [_row(metric, steps) for metric in _METRICS],
            numbers=range(1, 4),
        ),
        folded("Each step", _each(steps)),
    )


def _charts(facts: Facts) -> list[Element]:
    def pair(name: str) -> list[Line]:
        with_replay = Line("with replay", metric_points(facts.steps, f"r3/{name}"), "blue")
        native = [
            point
            for point in metric_points(facts.steps, f"r3/{name}_native")
            if point[1] is not None
        ]
        return [with_replay, Line("without", native, "vermillion", dashed=True)]

    charts = [
        line_chart("Mismatch", "k3 estimate of KL", pair("k3"), log=True),
        line_chart("Its tail", "99.9th percentile of |Δ logprob|", pair("p999_abs"), log=True),
        line_chart("Tokens off by over 10 %", "F(1.1)", pair("F_1.1"), rate=True),
        line_chart(
            "Choices training would not make",
            "share of what was replayed",
            [
                Line("tokens", metric_points(facts.steps, "r3/disagree_token"), "orange"),
                Line("slots", metric_points(facts.steps, "r3/disagree_slot"), "blue", dashed=True),
            ],
            rate=True,
        ),
        line_chart(
            "Coverage",
            "share of tokens",
            [
                Line("captured", metric_points(facts.steps, "r3/captured"), "blue"),
                Line("replayed", metric_points(facts.steps, "r3/replayed"), "orange", dashed=True),
            ],
            rate=True,
            most=1.0,
        ),
        line_chart(
            "Gradient of the routers",
            "norm",
            [Line("norm", metric_points(facts.steps, "r3/gate_grad_norm"), "blue")],
            log=True,
        ),
    ]
    return [chart for chart in charts if chart is not None]


def _alarms(facts: Facts) -> Element:
    """Return what the self-check found wrong: layer and sample are in its words."""
    found: list[Child] = [
        make("li", make("code", str(event.data.get("rollout_id"))), f" {event.data.get('reason')}")
        for event in facts.events
        if event.kind == "routing_refused" or _is_alarm(event)
    ]
    status = facts.status
    # any other code is of what lies around a run: a router that is gone says nothing of routing
    if status.exit_code == RoutingError.exit_code and "rout" in status.message:
        found.append(make("li", "It ended the run: ", status.message))
    if not found:
        return make("p", "✓ The self-check of each step found nothing wrong.", class_="good")
    return make("div", make("b", several(len(found), "alarm")), make("ul", *found), class_="alarms")


def _is_alarm(event: EventRow) -> bool:
    """Whether a rollout's samples could not be made because of its routing."""
    return event.kind == "unbuilt" and str(event.data.get("reason")).startswith("RoutingError")


def _row(metric: _Metric, steps: list[dict[str, float | None]]) -> list[Child]:
    values = [step.get(f"r3/{metric.name}") for step in steps]
    known = [value for value in values if value is not None]
    if not known:
        return [make("code", metric.name), UNKNOWN, UNKNOWN, UNKNOWN, metric.says]
    cells = (sum(known) / len(known), known[0], known[-1])
    return [make("code", metric.name), *(_said(metric, cell) for cell in cells), metric.says]


def _said(metric: _Metric, value: float | None) -> str:
    if metric.name in _WHOLE:
        return count(value)
    return share(value) if metric.rate else small(value)


def _each(steps: list[dict[str, float | None]]) -> Element:
    return table(
        ["step", *(metric.name for metric in _METRICS)],
        [
            [count(step["step"]), *(_said(each, step.get(f"r3/{each.name}")) for each in _METRICS)]
            for step in steps
        ],
        numbers=range(len(_METRICS) + 1),
    )
