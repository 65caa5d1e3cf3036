"""Compare the replayed choices with the training router's own, per sample and per layer.

The comparison costs no forward pass: a router that replays computes its own choices anyway.
Invariant: what is judged comes from the first pass over a step's samples, before its first update;
later passes differ because the routers have learned.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from runners.records.routing import NO_ROW, TokenAgreement, checksum_tokens
from runners.training.micro_batches import MicroBatch
from runners.training.peers import TrainingPeers
from runners.training.routing.evidence import CERTAINTY, pool_rows, scan_rows

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
    agreements: list[TokenAgreement] = field(default_factory=list)
    """Of each sample that had routing, in this process."""
    _pools: dict[str, _Pool] = field(init=False)
    """By kind of token, of the samples that are not at fault. Rows that are wrong from the first
    sampled token on would be lost among those of long prompts.
    """

    def __post_init__(self) -> None:
        size = len(self.layers)
        self._pools = {name: _Pool(np.zeros(size, np.int64)) for name in ("", "sampled ")}

    def add(self, batch: MicroBatch, routed: Tensor, other: Tensor) -> list[int]:
        """Add a micro-batch after its forward pass; return the numbers of its samples at fault.

        ``routed``: bool [positions]; ``other``: uint8 [positions, routed layers], as in
        ``ReplayCounts.rows``. A position that several samples share is judged in each.
        """
        known, others = routed.cpu().numpy(), other.cpu().numpy()
        by_token = others.sum(axis=1, dtype=np.int64)
        ids = batch.input_ids.reshape(-1).cpu().numpy()
        faulty = []
        sound = np.zeros(len(known), bool)
        """Positions of samples that are not at fault."""
        for number, (rollout_id, path) in enumerate(
            zip(batch.rollout_ids, batch.paths, strict=True)
        ):
            tokens = np.flatnonzero(known[path])
            reason = None
            if len(tokens):
                self.samples += 1
                self.agreements.append(
                    TokenAgreement(
                        rollout_id,
                        checksum_tokens(ids[path]),
                        self._count_percent(by_token[path], known[path]),
                    )
                )
                reason = self._judge(by_token[path[tokens]], tokens)
            if reason is None:
                sound[path] = True
            else:
                faulty.append(number)
                self.faults.append((rollout_id, reason))
        sampled = np.zeros_like(sound)
        sampled[batch.predictors.cpu().numpy()] = True
        kept = known & sound
        for mask, pool in zip((kept, kept & sampled), self._pools.values(), strict=True):
            pool.rows += int(mask.sum())
            pool.other += others[mask].sum(axis=0, dtype=np.int64)
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

    def _count_percent(
        self, other: NDArray[np.int64], known: NDArray[np.bool_]
    ) -> NDArray[np.uint8]:
        """Return ``TokenAgreement.percent`` of tokens with so many other choices, int64 [n]."""
        slots = self.top_k * len(self.layers)
        return np.where(known, 100 * (slots - other) // slots, NO_ROW).astype(np.uint8)

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
