"""Training signal of a replayed session: what the same answers are worth to the trainer now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runners.records.graph import build_segments
from runners.records.record import MAIN_THREAD, Turn


@dataclass(frozen=True, slots=True)
class SignalChange:
    """Branches and trained tokens of a session, recorded and replayed."""

    recorded: int
    """Sampled tokens in branches that are trained: all but side requests."""
    replayed: int
    """Likewise; a recorded answer that nobody asked for is missing here."""
    moved: Mapping[str, int]
    """Turns whose branch is another one now, by ``main → side`` and the like."""
    chains: Mapping[str, tuple[int, int]]
    """Numbers of chains by kind, recorded and replayed: more of kind ``wipe`` or ``edit`` are more
    breaks.
    """

    @property
    def lost(self) -> int:
        """Trained tokens that are not trained any more."""
        return max(0, self.recorded - self.replayed)


def measure_signal(
    recorded: Sequence[Turn], replayed: Sequence[Turn], pairs: Mapping[int, Turn]
) -> SignalChange:
    """Compare a session with its replay; ``pairs``: replayed turns by recorded index."""
    moves = Counter(
        f"{_label(turn)} → {_label(pairs[turn.index])}"
        for turn in recorded
        if turn.index in pairs and _label(turn) != _label(pairs[turn.index])
    )
    (before, was), (after, now) = (_count_chains(turns) for turns in (recorded, replayed))
    return SignalChange(
        recorded=was,
        replayed=now,
        moved=dict(moves),
        chains={kind: (before[kind], after[kind]) for kind in sorted(before | after)},
    )


def _label(turn: Turn) -> str:
    """Return a turn's branch; the names of sub-agents' threads differ from run to run."""
    of_sub = turn.branch == "compaction" and turn.thread != MAIN_THREAD
    return "compaction of a sub-agent" if of_sub else turn.branch


def _count_chains(turns: Sequence[Turn]) -> tuple[Counter[str], int]:
    """Return the chains by kind, and the sampled tokens of those that are trained."""
    segments = build_segments(turns)
    trained = sum(int(each.loss_mask.sum()) for each in segments if each.kind != "side")
    return Counter(str(each.kind) for each in segments), trained
