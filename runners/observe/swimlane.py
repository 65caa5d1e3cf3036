"""Lays out the attempts of a step as lanes over time; ``report/swimlane.py`` (SVG) and
``png_charts.py`` draw them.

Attempts of one rollout share a lane. Times are seconds since the first span; heights are parts of a
lane, 0 at its top and 1 at its bottom, so threads that speak at once lie below one another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runners.trajectory.record import MAIN_THREAD, RolloutRecord


@dataclass(frozen=True, slots=True)
class Span:
    """A stage of an attempt, or one of its model calls."""

    name: str
    """Of the stage, or of the call's branch."""
    start: float
    """Unix seconds."""
    seconds: float
    thread: str = MAIN_THREAD
    masked: bool = False
    """Of a call: its tokens are not in the loss."""
    cut: bool = False
    """Of a call: its sampling did not end by itself (a limit of tokens, an abort, a refusal)."""

    @property
    def end(self) -> float:
        """Unix seconds."""
        return self.start + self.seconds


@dataclass(frozen=True, slots=True)
class AttemptSpans:
    """One attempt and where its time went."""

    record: RolloutRecord
    stages: Sequence[Span]
    """One after the other; empty if only the model calls are known."""
    calls: Sequence[Span]

    @property
    def end(self) -> float:
        """When its last stage ended, else its last call; 0 without any."""
        return max((span.end for span in self.stages or self.calls), default=0.0)


@dataclass(frozen=True, slots=True)
class Box:
    """A span as it is drawn."""

    name: str
    left: float
    """Seconds since the beginning of the drawing."""
    width: float
    """Seconds."""
    top: float = 0.0
    height: float = 1.0
    masked: bool = False
    """As the span's; likewise ``cut``."""
    cut: bool = False


@dataclass(frozen=True, slots=True)
class LaidOutAttempt:
    """One attempt in its lane."""

    spans: AttemptSpans
    stages: Sequence[Box]
    calls: Sequence[Box]
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class Swimlane:
    """Lanes of a step, in order of group and member: label → attempts."""

    lanes: Sequence[tuple[str, Sequence[LaidOutAttempt]]]
    seconds: float
    """From the first span to the last one's end."""
    shown: int
    """Attempts that are drawn."""


def lay_out(attempts: Sequence[AttemptSpans], most: int | None = None) -> Swimlane:
    """Place the attempts of a step; of more than ``most``, those that ended last."""
    if most is not None and len(attempts) > most:
        last = set(map(id, sorted(attempts, key=lambda attempt: attempt.end)[-most:]))
        attempts = [attempt for attempt in attempts if id(attempt) in last]
    begun = [span.start for attempt in attempts for span in attempt.stages or attempt.calls]
    start = min(begun, default=0.0)
    lanes: dict[str, list[AttemptSpans]] = defaultdict(list)
    for attempt in attempts:
        lanes[attempt.record.rollout_id].append(attempt)
    return Swimlane(
        lanes=[
            (
                f"{attempts[0].record.group}.{attempts[0].record.member}",
                [_lay_out_attempt(attempt, start) for attempt in attempts],
            )
            for attempts in lanes.values()
        ],
        seconds=max((attempt.end - start for attempt in attempts if attempt.end), default=0.0),
        shown=len(attempts),
    )


def _lay_out_attempt(attempt: AttemptSpans, start: float) -> LaidOutAttempt:
    threads = list(dict.fromkeys(call.thread for call in attempt.calls))
    stages = [Box(span.name, span.start - start, span.seconds) for span in attempt.stages]
    calls = [
        Box(
            call.name,
            call.start - start,
            call.seconds,
            threads.index(call.thread) / len(threads),
            1 / len(threads),
            call.masked,
            call.cut,
        )
        for call in attempt.calls
    ]
    boxes = stages or calls
    return LaidOutAttempt(
        attempt,
        stages,
        calls,
        left=min((box.left for box in boxes), default=0.0),
        right=max((box.left + box.width for box in boxes), default=0.0),
    )


def without_texts(record: RolloutRecord) -> RolloutRecord:
    """Return a record without its long texts, small enough to keep many of them."""
    return replace(record, final_message="", patch="", verdict=None, extra={})


def name_end(record: RolloutRecord) -> str:
    """Return how an attempt ended: "solved", "unsolved", or the outcome class that explains why
    there is no grade.
    """
    if record.solved is None or not record.outcome.meaning.reward_counts:
        return record.outcome.outcome_class.value
    return "solved" if record.solved else "unsolved"
