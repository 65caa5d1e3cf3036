"""Reduce the metrics of a step over the processes that train together."""

from __future__ import annotations

from dataclasses import fields

from runners.training.mismatch import Mismatch
from runners.training.peers import TrainingPeers
from runners.training.totals import StepTotals

COMMON = ("updates", "loss", "norm", "learning_rate", "failed")
"""The same in every process: updates are made of the gradients of all."""


def reduce_totals(totals: StepTotals, peers: TrainingPeers) -> None:
    """Replace a process's share of a step's totals by those of the step: sums, and the mismatches
    of all tokens. None stays what no process has.
    """
    for name in (field.name for field in fields(totals) if field.name not in COMMON):
        value = getattr(totals, name)
        if not peers.any(value is not None):
            continue
        if isinstance(value, Mismatch):  # all processes measure it, or none
            setattr(totals, name, value.joined(peers.join))
        else:
            [total] = peers.add([float(value or 0)])
            setattr(totals, name, int(total) if isinstance(value, int) else total)
