"""Counts of one gateway process, for a monitor: sums over all sessions, with no name of any.

Counting is an addition to an integer at places that a turn passes anyway. Invariant: a count only
grows while the process lives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from runners.records.record import Turn

BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of durations; a last bucket has those above."""


@dataclass(slots=True)
class Durations:
    """A histogram of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    """By bucket, each without those below it."""
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds


@dataclass(slots=True)
class GatewayCounts:
    """Counted since the process began."""

    prompt_tokens: int = 0
    """Of stored turns, what was continued included."""
    sampled_tokens: int = 0
    aborted: int = 0
    """Generations that were cut off because nobody waited any more."""
    failed: int = 0
    """Generations that failed at the engine after all retries."""
    request_bytes: int = 0
    """Of the bodies of requests for turns."""
    answer_bytes: int = 0
    """Of the bodies that answer them."""
    answers: Counter[str] = field(default_factory=Counter)
    """By HTTP status, of all requests."""
    turn: Durations = field(default_factory=Durations)
    """Of stored turns, from the request to its answer."""
    engine: Durations = field(default_factory=Durations)
    """In the engine."""

    def add_turn(self, turn: Turn) -> None:
        """Count a stored turn."""
        self.prompt_tokens += turn.prompt_tokens
        self.sampled_tokens += turn.output_tokens
        self.turn.add(turn.total_s)
        self.engine.add(turn.engine_s)

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON."""
        # ``asdict`` makes a Counter of pairs of a Counter
        return asdict(self) | {"answers": dict(self.answers)}
