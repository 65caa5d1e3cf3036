"""The rollouts of a step as lanes over time: a bar per stage, a stripe per model call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from runners.report.chart import label, legend
from runners.report.element import Child, make
from runners.report.figures import seconds
from runners.report.overview import STAGES
from runners.report.scale import Scale
from runners.store.run_store import RunStore
from runners.trajectory.record import RolloutRecord

MOST = 96
"""Lanes of a drawing."""
_WIDTH, _LANE, _TOP, _LEFT, _RIGHT = 1120.0, 13.0, 22.0, 46.0, 26.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A stage, or a model call."""

    name: str
    start: float
    """Unix seconds."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt."""

    record: RolloutRecord
    stages: list[Bar]
    calls: list[Bar]

    @property
    def end(self) -> float:
        """When its last stage ended."""
        return max((bar.start + bar.seconds for bar in self.stages), default=0.0)


def read_runs(store: RunStore, step: int, split: str) -> list[Run]:
    """Return the attempts of a step that got a session, in order of group and member.

    A stage's seconds are recorded and its place is not: the first ends when the gateway opened the
    session, each next one follows it.
    """
    within = "session_id IN (SELECT session_id FROM rollout WHERE step = ? AND split = ?)"
    begun = dict(
        map(
            tuple,
            store.query(
                f"SELECT session_id, created_at FROM session WHERE {within}", (step, split)
            ),
        )
    )
    calls: dict[str, list[Bar]] = defaultdict(list)
    for session, *call in store.query(
        f"SELECT session_id, branch, started_at, total_s FROM turn WHERE {within}", (step, split)
    ):
        calls[session].append(Bar(*call))
    return [
        Run(record, list(_stages(record, begun[record.session_id])), calls[record.session_id])
        for record in store.each_rollout(step=step, split=split)
        if record.session_id in begun
    ]


def _stages(record: RolloutRecord, opened_at: float) -> Iterator[Bar]:
    spent = {stage: record.timings.get(stage, 0.0) for stage in STAGES}
    at = opened_at - spent["session"] - spent["queue"]
    for stage, took in spent.items():
        yield Bar(stage, at, took)
        at += took


def swimlane(runs: Sequence[Run]) -> Element:
    """Return the drawing: of many attempts, those that ended last."""
    shown = runs
    if len(runs) > MOST:
        last = set(map(id, sorted(runs, key=lambda run: run.end)[-MOST:]))
        shown = [run for run in runs if id(run) in last]
    lanes: dict[str, list[Run]] = defaultdict(list)  # an attempt after the one it replaces
    for run in shown:
        lanes[run.record.rollout_id].append(run)
    start = min(bar.start for run in shown for bar in run.stages)
    height = _TOP + len(lanes) * _LANE + 4
    along = Scale(0.0, max(max(run.end for run in shown) - start, 0.1), _LEFT, _WIDTH - _RIGHT)
    parts: list[Child] = []
    for tick in along.ticks(12):
        x = along.place(tick)
        parts.append(make("line", x1=x, x2=x, y1=_TOP - 4, y2=height, class_="grid"))
        parts.append(label(f"{tick:g} s", x, _TOP - 8))
    for number, attempts in enumerate(lanes.values()):
        parts += _lane(attempts, _TOP + number * _LANE, along, start)
    drawing = make(
        "svg", *parts, viewBox=f"0 0 {_WIDTH:g} {height:g}", role="img", aria_label="swimlane"
    )
    marks = [(stage, f"{colour} box") for stage, colour in STAGES.items()]
    note = f"{len(shown):,} of {len(runs):,} attempts" if len(shown) < len(runs) else ""
    return make(
        "div",
        legend([*marks, ("model call", "call box")]),
        make("p", "✓ solved   ✗ unsolved   ! no grade", f"   {note}", class_="dim small pre"),
        make("div", drawing, class_="scrolled lanes"),
    )


def _lane(attempts: Sequence[Run], top: float, along: Scale, start: float) -> Iterator[Child]:
    first = attempts[0].record
    yield label(f"{first.group}.{first.member}", _LEFT - 5, top + _LANE - 3, "end", class_="lane")
    for run in attempts:
        bars: list[Child] = [make("title", _described(run))]
        for bar in run.stages:
            bars.append(_box(bar, top + 1.5, _LANE - 3, along, start, f"fill {STAGES[bar.name]}"))
        for bar in run.calls:
            bars.append(_box(bar, top + 4.5, _LANE - 9, along, start, "call"))
        yield make("g", *bars, class_=None if run.record.counts else "replaced")
        tone, sign = _end(run.record)
        at = along.place(run.end - start) + 4
        yield label(sign, at, top + _LANE - 3, "start", class_=tone)


def _box(
    bar: Bar, top: float, height: float, along: Scale, start: float, classes: str
) -> Element | None:
    left, right = along.place(bar.start - start), along.place(bar.start + bar.seconds - start)
    if right - left < 0.05:
        return None
    return make("rect", x=left, y=top, width=right - left, height=height, class_=classes)


def _end(record: RolloutRecord) -> tuple[str, str]:
    if record.solved is None or not record.outcome.meaning.reward_counts:
        return "none", "!"
    return ("good", "✓") if record.solved else ("bad", "✗")


def _described(run: Run) -> str:
    record = run.record
    return "\n".join(
        [
            f"{record.rollout_id}, attempt {record.attempt}",
            f"{record.task_id}: {record.outcome.code}",
            *(f"{bar.name} {seconds(bar.seconds)}" for bar in run.stages if bar.seconds >= 0.005),
            f"{len(run.calls)} model calls",
        ]
    )
