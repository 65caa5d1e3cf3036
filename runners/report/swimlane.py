"""Draws the rollouts of a step as lanes over time: a bar per stage, a stripe per model call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from runners.observe.swimlane import (
    AttemptSpans,
    Box,
    LaidOutAttempt,
    Span,
    lay_out,
    name_end,
)
from runners.report.chart import make_label, make_legend
from runners.report.element import Child, make
from runners.report.number_format import format_seconds
from runners.report.overview import STAGES
from runners.report.scale import Scale
from runners.store.run_store import RunStore
from runners.trajectory.outcome import place_stages

MOST = 96
"""Lanes of a drawing."""
_SIGNS = {"solved": ("good", "✓"), "unsolved": ("bad", "✗")}
_WIDTH, _LANE, _TOP, _LEFT, _RIGHT = 1120.0, 13.0, 22.0, 46.0, 26.0


def read_attempts(store: RunStore, step: int, split: str) -> list[AttemptSpans]:
    """Return the attempts of a step that got a session, in order of group and member."""
    within = "session_id IN (SELECT session_id FROM rollout WHERE step = ? AND split = ?)"
    begun = dict(
        map(
            tuple,
            store.query(
                f"SELECT session_id, created_at FROM session WHERE {within}", (step, split)
            ),
        )
    )
    calls: dict[str, list[Span]] = defaultdict(list)
    for session, branch, started_at, total_s, thread, finish_reason in store.query(
        "SELECT session_id, branch, started_at, total_s, thread, finish_reason FROM turn "
        f"WHERE {within}",
        (step, split),
    ):
        cut = finish_reason != "stop"
        calls[session].append(Span(branch, started_at, total_s, thread, cut=cut))
    return [
        AttemptSpans(
            record,
            [Span(*stage) for stage in place_stages(record.timings, begun[record.session_id])],
            calls[record.session_id],
        )
        for record in store.each_rollout(step=step, split=split)
        if record.session_id in begun
    ]


def draw_swimlane(attempts: Sequence[AttemptSpans]) -> Element:
    """Return the drawing: of many attempts, those that ended last."""
    layout = lay_out(attempts, MOST)
    height = _TOP + len(layout.lanes) * _LANE + 4
    along = Scale(0.0, max(layout.seconds, 0.1), _LEFT, _WIDTH - _RIGHT)
    parts: list[Child] = []
    for tick in along.ticks(12):
        x = along.place(tick)
        parts.append(make("line", x1=x, x2=x, y1=_TOP - 4, y2=height, class_="grid"))
        parts.append(make_label(f"{tick:g} s", x, _TOP - 8))
    for number, (name, shown) in enumerate(layout.lanes):
        parts += _lane(name, shown, _TOP + number * _LANE, along)
    drawing = make(
        "svg", *parts, viewBox=f"0 0 {_WIDTH:g} {height:g}", role="img", aria_label="swimlane"
    )
    marks = [(stage, f"{colour} box") for stage, colour in STAGES.items()]
    left_out = layout.shown < len(attempts)
    note = f"{layout.shown:,} of {len(attempts):,} attempts" if left_out else ""
    marks.append(("model call", "call box"))
    if any(call.cut for attempt in attempts for call in attempt.calls):
        marks.append(("cut off (tokens, abort)", "call cut box"))
    return make(
        "div",
        make_legend(marks),
        make("p", "✓ solved   ✗ unsolved   ! no grade", f"   {note}", class_="dim small pre"),
        make("div", drawing, class_="scrolled lanes"),
    )


def _lane(
    name: str, attempts: Sequence[LaidOutAttempt], top: float, along: Scale
) -> Iterator[Child]:
    yield make_label(name, _LEFT - 5, top + _LANE - 3, "end", class_="lane")
    for attempt in attempts:
        boxes: list[Child] = [make("title", _describe(attempt.spans))]
        for box in attempt.stages:
            boxes.append(_rectangle(box, top + 1.5, _LANE - 3, along, f"fill {STAGES[box.name]}"))
        for box in attempt.calls:
            kind = "call cut" if box.cut else "call"
            boxes.append(_rectangle(box, top + 4.5, _LANE - 9, along, kind))
        record = attempt.spans.record
        yield make("g", *boxes, class_=None if record.counts else "replaced")
        tone, sign = _SIGNS.get(name_end(record), ("none", "!"))
        at = along.place(attempt.right) + 4
        yield make_label(sign, at, top + _LANE - 3, "start", class_=tone)


def _rectangle(box: Box, top: float, height: float, along: Scale, classes: str) -> Element | None:
    left, right = along.place(box.left), along.place(box.left + box.width)
    if right - left < 0.05:
        return None
    return make(
        "rect",
        x=left,
        y=top + box.top * height,
        width=right - left,
        height=box.height * height,
        class_=classes,
    )


def _describe(attempt: AttemptSpans) -> str:
    record = attempt.record
    return "\n".join(
        [
            f"{record.rollout_id}, attempt {record.attempt}",
            f"{record.task_id}: {record.outcome.code}",
            *(
                f"{bar.name} {format_seconds(bar.seconds)}"
                for bar in attempt.stages
                if bar.seconds >= 0.005
            ),
            f"{len(attempt.calls)} model calls",
        ]
    )
