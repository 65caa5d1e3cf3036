"""Compare the replayed choices with the training router's own, per sample and per layer.

The comparison costs no forward pass: a router that replays computes its own choices anyway.
Invariant: what is judged comes from the first pass over a step's samples, before its first update;
later passes differ because the routers have learned.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runners.training.micro_batches import MicroBatch
from runners.training.peers import TrainingPeers
from runners.training.routing.evidence import CERTAINTY, pool_rows, scan_rows

Part = tuple[slice, slice]
"""Rows and positions of one forward call."""
MOST_AT_FAULT = 0.5
"""If more of the samples are at fault, none of them is: it is the engine, the wire or the model."""


@dataclass(slots=True)
class _Pool:
    """Rows of many samples: choices of each layer that training would not make."""

    other: NDArray[np.int64]
    """[routed layers]"""
    rows: int = 0


@dataclass(slots=True)
class DisagreementCheck:
    """Comparison of one step's first pass; grows by ``add``."""

    limit: float
    """``routing_replay.alarm_disagreement``"""
    layers: tuple[int, ...]
    """The layers that route."""
    top_k: int
    samples: int = 0
    """Samples that had routing."""
    faults: list[tuple[str, str]] = field(default_factory=list)
    """Rollout and reason of each sample at fault."""
    largest: float | None = None
    """Largest share of a sample's choices that training would not make."""
    _pools: dict[str, _Pool] = field(init=False)
    """By kind of token, of the samples that are not at fault. Rows that are wrong from the first
    sampled token on would be lost among those of long prompts.
    """

    def __post_init__(self) -> None:
        size = len(self.layers)
        self._pools = {name: _Pool(np.zeros(size, np.int64)) for name in ("", "sampled ")}

    def add(
        self, batch: MicroBatch, routed: Tensor, rows: Sequence[Tensor], parts: Sequence[Part]
    ) -> list[int]:
        """Add a micro-batch after its forward pass; return the rows whose samples are at fault.

        ``routed``: bool [B, T]; ``rows``: per forward call uint8 [b · t, routed layers]; ``parts``:
        their places in the batch.
        """
        by_token = torch.zeros(routed.shape, dtype=torch.int64, device=routed.device)
        for part, other in zip(parts, rows, strict=True):
            # A prefix that was run once is every row's.
            by_token[:, part[1]] = other.view(*batch.input_ids[part].shape, -1).sum(2)
        known, others = routed.cpu().numpy(), by_token.cpu().numpy()
        faulty = []
        for row, rollout_id in enumerate(batch.rollout_ids):
            tokens = np.flatnonzero(known[row])
            if not len(tokens):
                continue
            self.samples += 1
            reason = self._judge(others[row, tokens], tokens)
            if reason is not None:
                faulty.append(row)
                self.faults.append((rollout_id, reason))
        self._pool(batch, routed, rows, parts, faulty)
        return faulty

    def merge(self, peers: TrainingPeers) -> None:
        """Add what the other processes of a step compared: all of them judge the same."""
        texts = peers.join_texts([json.dumps(fault) for fault in self.faults])
        self.faults = [(rollout_id, reason) for rollout_id, reason in map(json.loads, texts)]
        pools = list(self._pools.values())
        sums = peers.add(
            [self.samples, *(pool.rows for pool in pools), *(n for p in pools for n in p.other)]
        )
        self.samples, *numbers = (int(number) for number in sums)
        for index, pool in enumerate(pools):
            pool.rows = numbers[index]
            start = len(pools) + index * len(self.layers)
            pool.other = np.array(numbers[start : start + len(self.layers)], np.int64)
        largest = peers.largest(-1.0 if self.largest is None else self.largest)
        self.largest = largest if largest >= 0 else None

    def find_fault(self) -> str | None:
        """Return why the whole step is at fault, None if it is not."""
        if len(self.faults) > MOST_AT_FAULT * self.samples:
            rollout_id, reason = self.faults[0]
            return f"{len(self.faults)} of {self.samples} samples: {rollout_id} {reason}"
        for name, pool in self._pools.items():
            for layer, other in zip(self.layers, pool.other, strict=True):
                share = float(other) / max(1, pool.rows * self.top_k)
                if pool_rows(share, pool.rows, self.limit) > CERTAINTY:
                    return (
                        f"{share:.0%} of layer {layer}'s replayed choices for {pool.rows} {name}"
                        "tokens are none that training would make"
                    )
        return None

    def _judge(self, other: NDArray[np.int64], tokens: NDArray[np.intp]) -> str | None:
        """Return why a sample is at fault; ``other``: its choices per token, int64 [n]."""
        shares = other / (self.top_k * len(self.layers))
        self.largest = max(self.largest or 0.0, float(shares.mean()))
        found = scan_rows(shares, self.limit)
        if found.evidence <= CERTAINTY:
            return None
        first, last = tokens[found.start], tokens[found.stop - 1]
        return (
            f"replays choices of which {shares[found.start : found.stop].mean():.0%} are none that "
            f"training would make, from token {first} to {last}"
        )

    def _pool(
        self,
        batch: MicroBatch,
        routed: Tensor,
        rows: Sequence[Tensor],
        parts: Sequence[Part],
        faulty: list[int],
    ) -> None:
        """Add the rows of the samples that are not at fault; a shared prefix counts once."""
        kept = routed.clone()
        kept[faulty] = False
        sampled = torch.zeros_like(routed)
        sampled[batch.rows, batch.positions] = True
        for part, other in zip(parts, rows, strict=True):
            for mask, pool in zip((kept, kept & sampled), self._pools.values(), strict=True):
                taken = other[mask[part].flatten()]
                pool.rows += len(taken)
                pool.other += taken.sum(0).cpu().numpy()
