"""Make the figures of a step those of all processes that train together."""

from __future__ import annotations

from runners.training.peers import TrainingPeers
from runners.training.totals import StepTotals

SUMMED = (
    *("tokens", "clipped_low", "clipped_high", "entropy", "moved", "ratio", "ratio_squares"),
    *("truncated", "rejected", "flat", "nodes", "positions"),
)
"""Sums over tokens or positions, of which each process has its share."""
OPTIONAL = ("kl", "teacher")
"""The same; None in a process without such tokens."""
JOINED = ("mismatch", "native")
"""The tokens themselves."""
COMMON = ("updates", "loss", "norm", "learning_rate", "failed")
"""The same in every process: updates are made of the gradients of all."""


def merge_totals(totals: StepTotals, peers: TrainingPeers) -> None:
    """Replace a process's share of a step's figures by the figures of the step."""
    if peers.count == 1:
        return
    names = (*SUMMED, *OPTIONAL)
    own = [getattr(totals, name) for name in names]
    sums = peers.add([float(value or 0) for value in own])
    known = peers.add([float(value is not None) for value in own])
    for name, value, total, there in zip(names, own, sums, known, strict=True):
        setattr(totals, name, (int(total) if type(value) is int else total) if there else None)
    totals.mismatch = totals.mismatch.joined(peers.join)
    if totals.native is not None:  # all processes measure it, or none
        totals.native = totals.native.joined(peers.join)
