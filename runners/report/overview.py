"""Builds the head of a report, its curves, and the table of outcomes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import get_args
from xml.etree.ElementTree import Element

from runners.observe.curves import REWARD, SOLVE_RATE, metric_points
from runners.observe.dashboard import format_duration
from runners.report.chart import ChartLine, draw_line_chart, draw_stacked_chart
from runners.report.element import Child, make
from runners.report.number_format import (
    format_count,
    format_interval,
    format_quantity,
    format_share,
)
from runners.report.report_data import UNGRADED, ReportData, SolveRate, solve_rate_intervals
from runners.report.table import make_section, make_table
from runners.store.run_state import State
from runners.trajectory.outcome import MEANING, TEARDOWN, OutcomeClass
from runners.trajectory.record import SegmentKind

_STATE_COLOURS: dict[str, str] = {State.DONE: "green", State.RUNNING: "blue", State.CREATED: "grey"}

_PHASES = {
    "rollouts": ("blue", "time/rollout_s"),
    "training": ("orange", "time/train_s"),
}
STAGES = {
    "queue": "grey",
    "session": "yellow",
    "boot": "sky",
    "harness": "blue",
    "patch": "purple",
    TEARDOWN: "green",
    "finish": "vermillion",
    "grade": "orange",
}
"""Each stage of an attempt, and its colour: in the order of most attempts (``order_stages``)."""
_SEGMENTS = dict(
    zip(get_args(SegmentKind), ("blue", "grey", "purple", "orange", "green"), strict=True)
)
_SPLITS = {"train": "training", "eval": "evaluation"}
_ENDS = {"solved": "green", "unsolved": "vermillion", UNGRADED: "yellow"}

_MEANS = {
    OutcomeClass.POLICY: "the policy's own end: graded, trained",
    OutcomeClass.BUDGET: "a limit ended it: graded like any other",
    OutcomeClass.INFRA: "a service failed: no reward, retried",
    OutcomeClass.GRADER: "no verdict: no reward, retried",
    OutcomeClass.CANCELLED: "the run was stopped: not counted",
    OutcomeClass.INTERNAL: "a defect of agentrl: no reward, retried",
}


def build_head(facts: ReportData) -> Element:
    """Return the head of the page: the run, its state and its results."""
    status = facts.status
    what = f"evaluation of {status.benchmark}" if status.benchmark else "campaign"
    chosen = ("scenario", "model", "engine", "sandbox", "harness", "task", "trainer")
    facts_line = [
        make("span", make("span", f"{group} ", class_="dim"), facts.kind(group))
        for group in chosen
        if not (status.benchmark and group == "trainer")
    ]
    state = make("span", status.state, class_=f"state {_STATE_COLOURS.get(status.state, 'orange')}")
    notes: list[Child] = []
    if status.message:
        notes.append(make("p", status.message, class_="message"))
    if status.inexact:
        notes.append(make("p", status.inexact, class_="message"))
    if status.resume_command:
        notes.append(make("p", "Continue with ", make("code", status.resume_command)))
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(facts.written_at))
    return make(
        "header",
        make("p", what, class_="dim"),
        make("h1", status.run_dir.rstrip("/").rpartition("/")[2] or status.run_dir, " ", state),
        make("p", *facts_line, class_="chosen"),
        *notes,
        make("div", *_tiles(facts), class_="tiles"),
        make("p", f"as of {when}, in {status.run_dir}", class_="dim small"),
    )


def _tiles(facts: ReportData) -> Iterator[Element]:
    status, sums = facts.status, facts.sums
    if status.benchmark:
        for rate in facts.rates:
            yield _tile(
                rate.name, format_share(rate.value), f"95 %: {_between(rate)}, {rate.of:,} tasks"
            )
    elif facts.rates:
        first, last = facts.rates[0], facts.rates[-1]
        change = "" if first is last else f" → {format_share(last.value)}"
        of = f"95 %: {_between(first)}" + ("" if first is last else f" → {_between(last)}")
        rates = format_share(first.value) + change
        yield _tile("held-out solve rate", rates, f"{of}, {first.of:,} rollouts")
    if not status.benchmark:
        rewards = [step.get(REWARD) for step in facts.steps]
        known = [reward for reward in rewards if reward is not None]
        if known:
            change = f"{known[0]:.2f}" + (f" → {known[-1]:.2f}" if len(known) > 1 else "")
            yield _tile("mean reward", change, "first and last step")
        done = status.step_rollouts
        under_way = f"{format_quantity(done, 'rollout')} of the next done" if done else ""
        yield _tile("steps", f"{status.steps_done:,} of {status.steps:,}", under_way)
    ended = sum(sum(codes.values()) for codes in sums.outcomes.values())
    failed = sum(failure.count for failure in sums.failures.values())
    more = f"{format_quantity(failed, 'attempt')} failed" if failed else "no attempt failed"
    yield _tile("rollouts", format_count(ended), more)
    groups, tokens = status.groups, status.tokens
    if groups.total:
        flat = f"{format_count(groups.flat)} flat: no gradient"
        yield _tile("groups", format_count(groups.total), flat)
    trained = f"{format_count(tokens.trained)} trained" if not status.benchmark else ""
    yield _tile("tokens of all attempts", format_count(status.sampled_tokens), trained)
    yield _tile("wall time", format_duration(facts.wall_s), "of all executions")


def _tile(name: str, value: str, more: str) -> Element:
    return make(
        "div", make("span", name, class_="dim"), make("b", value), make("small", more or "\u00a0")
    )


def _between(rate: SolveRate) -> str:
    return format_interval((rate.low, rate.high))


def build_curves(facts: ReportData) -> Element | None:
    """Return the charts of the run over its steps."""

    def curve(name: str, metric: str) -> list[ChartLine]:
        return [ChartLine(name, metric_points(facts.steps, metric), "blue")]

    solved, speed = [_solved(facts)], curve("tokens/s", "tokens/per_s")
    charts = [
        draw_line_chart(
            "Held-out solve rate",
            "with 95 % interval (Wilson)",
            [] if facts.status.benchmark else [_held_out(facts.rates)],
            rate=True,
            most=1.0,
        ),
        draw_line_chart(
            "Training solve rate",
            "graded rollouts, with 95 % interval (Wilson)",
            solved,
            rate=True,
            most=1.0,
        ),
        *_charts_by_set(facts),
        draw_line_chart(
            "Solved in part",
            "graded rollouts; partial credit pays them",
            curve("solved in part", "train/solved_in_part") if facts.status.partly_solved else [],
            rate=True,
        ),
        draw_line_chart("Mean reward", "graded rollouts", curve("reward", REWARD)),
        draw_line_chart("Parts of the reward", "mean, graded rollouts", _reward_parts(facts)),
        draw_stacked_chart(
            "How rollouts ended",
            "rollouts per step",
            {end: (colour, _counts(facts.sums.ends, end)) for end, colour in _ENDS.items()},
        ),
        draw_line_chart("Tampered", "rollouts per step, by canaries", _cheating(facts, "tampered")),
        draw_line_chart("Signs of cheating", "rollouts per step", _cheating(facts, "signs")),
        draw_stacked_chart("Trained tokens", "per step, by kind of segment", _trained(facts)),
        draw_line_chart("Sampling speed", "tokens/s while rolling out", speed),
        draw_stacked_chart("Time of a step", "seconds, by phase", _phases(facts)),
        draw_stacked_chart("Time of a rollout", "mean seconds, by stage", _stages(facts)),
        draw_line_chart(
            "Training against rollout",
            "k3, an estimate of KL",
            curve("k3", "policy/k3"),
            log=True,
        ),
    ]
    shown = [chart for chart in charts if chart is not None]
    return make_section("Curves", make("div", *shown, class_="charts")) if shown else None


def _solved(facts: ReportData) -> ChartLine:
    """Return the training solve rate with Wilson's interval of each step's graded rollouts."""
    ranges = solve_rate_intervals(facts)
    return ChartLine(
        "solved", metric_points(facts.steps, SOLVE_RATE), "blue", ranges=ranges, band=True
    )


def _charts_by_set(facts: ReportData) -> Iterator[Element | None]:
    """Yield the solve rates of each set of a mixture, in training and in evaluations."""
    kinds = {SOLVE_RATE: "Training solve rate", "eval/solve_rate": "Held-out solve rate"}
    metrics = dict.fromkeys(name for step in facts.steps for name in step)
    for key, title in kinds.items():
        for metric in metrics:
            if metric.startswith(f"{key}/"):
                name = metric.removeprefix(f"{key}/")
                found = metric_points(facts.steps, metric)
                points = [(step, value) for step, value in found if value is not None]
                lines = [ChartLine(name, points, "blue" if key == SOLVE_RATE else "orange")]
                what = "graded rollouts"
                yield draw_line_chart(f"{title}: {name}", what, lines, rate=True, most=1.0)


def _reward_parts(facts: ReportData) -> list[ChartLine]:
    """Return a curve of each part of the reward; nothing if there is one alone."""
    names = dict.fromkeys(n for step in facts.steps for n in step if n.startswith("reward/"))
    colours = ("green", "vermillion", "purple", "orange", "sky", "blue", "yellow", "grey")
    lines = [
        ChartLine(name.removeprefix("reward/"), metric_points(facts.steps, name), colour)
        for name, colour in zip(names, colours, strict=False)
    ]
    return lines if len(lines) > 1 else []


def _cheating(facts: ReportData, name: str) -> list[ChartLine]:
    """Return a curve of the rollouts that cheat; nothing if none did."""
    points = metric_points(facts.steps, f"cheating/{name}")
    return [ChartLine(name, points, "vermillion")] if any(value for _, value in points) else []


def _held_out(rates: list[SolveRate]) -> ChartLine:
    return ChartLine(
        "held-out",
        [(rate.step, rate.value) for rate in rates],
        "orange",
        ranges=[(rate.step, rate.low, rate.high) for rate in rates],
    )


def _counts(by_step: Mapping[int, Mapping[str, float]], name: str) -> dict[int, float]:
    return {step: counts.get(name, 0.0) for step, counts in by_step.items()}


def _heights(facts: ReportData, metric: str) -> dict[int, float]:
    return {step: value or 0.0 for step, value in metric_points(facts.steps, metric)}


def _trained(facts: ReportData) -> dict[str, tuple[str, dict[int, float]]]:
    return {
        kind: (colour, _heights(facts, f"tokens/trained_{kind}"))
        for kind, colour in _SEGMENTS.items()
    }


def _phases(facts: ReportData) -> dict[str, tuple[str, dict[int, float]]]:
    parts = {name: (colour, _heights(facts, key)) for name, (colour, key) in _PHASES.items()}
    rest = {
        step: max(0.0, whole - sum(heights[step] for _, heights in parts.values()))
        for step, whole in _heights(facts, "time/step_s").items()
    }
    return {**parts, "batch and checkpoint": ("grey", rest)}


def _stages(facts: ReportData) -> dict[str, tuple[str, dict[int, float]]]:
    number = {step: sum(ends.values()) for step, ends in facts.sums.ends.items()}
    return {
        stage: (
            colour,
            {
                step: spent.get(stage, 0.0) / max(1, number[step])
                for step, spent in facts.sums.stages.items()
            },
        )
        for stage, colour in STAGES.items()
    }


def build_outcomes(facts: ReportData) -> Element:
    """Return the number of rollouts by outcome, and what each outcome means."""
    splits = [split for split in ("train", "eval") if split in facts.sums.outcomes]
    codes = {code for split in splits for code in facts.sums.outcomes[split]}
    totals = {split: sum(facts.sums.outcomes[split].values()) for split in splits}
    rows = []
    for code in sorted(codes, key=lambda code: -sum(facts.sums.outcomes[s][code] for s in splits)):
        kind = OutcomeClass(code.partition(".")[0])
        meaning = MEANING[kind]
        cells: list[Child] = [make("code", code)]
        for split in splits:
            number = facts.sums.outcomes[split][code]
            cells += [format_count(number), format_share(number / totals[split])]
        rows.append([*cells, _MEANS[kind], "yes" if meaning.reward_counts else "no"])
    if not rows:
        return make_section("Outcomes", make("p", "No rollout has ended yet.", class_="dim"))
    parts = [
        make("p", f"Solved in part, in {_SPLITS[each.split]}: {each}.", class_="dim")
        for each in facts.status.partly_solved
    ]
    columns = [
        "outcome",
        *(c for s in splits for c in (_SPLITS[s], "")),
        "meaning",
        "reward counts",
    ]
    return make_section(
        "Outcomes", make_table(columns, rows, numbers=range(1, 1 + 2 * len(splits))), *parts
    )
