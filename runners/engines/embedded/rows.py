"""The running requests as arrays: row ``r`` of every array, and of the KV store, is one request.

Invariant: rows ``0 … decoding-1`` decode, rows ``decoding … used-1`` are being prefilled, the rest
are free. The decoding rows are contiguous, so attention over them is a slice and nothing is
gathered.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runners.engines.embedded.attention import KvStore
from runners.engines.embedded.model import RoutingArray
from runners.engines.embedded.request import Request
from runners.engines.embedded.sampling import BatchSampling
from runners.engines.embedded.weights import ModelConfig
from runners.records.record import IdArray, LogprobArray

NO_STOP_ID = -1
"""Padding of ``stop_ids``; no token has this id."""


class RowKeys:
    """Keys, values and routing of the rows' first positions, computed by one set of weights."""

    def __init__(self, config: ModelConfig, count: int, capacity: int) -> None:
        self.kv = KvStore(config, count, capacity)
        self.routing: RoutingArray = np.zeros(
            (count, capacity, config.layers, config.experts_per_token), dtype=np.int16
        )
        self.computed = np.zeros(count, dtype=np.int64)
        """Number of positions with stored keys and values."""

    def move(self, source: int, target: int) -> None:
        """Copy row ``source`` to row ``target``."""
        computed = int(self.computed[source])
        self.routing[target, :computed] = self.routing[source, :computed]
        self.kv.span(target, 0, computed).copy_(self.kv.span(source, 0, computed))
        self.computed[target] = computed


class Rows:
    """State of up to ``count`` running requests; mutated only by the scheduler."""

    def __init__(self, config: ModelConfig, count: int, capacity: int) -> None:
        self.count = count
        self.decoding = 0
        self.used = 0
        self.keys = RowKeys(config, count, capacity)
        self.next_keys: RowKeys | None = None
        """The same by weights that are about to be used; None while none are."""
        self.requests: list[Request] = []
        self.ids = np.zeros((count, capacity), dtype=np.int32)
        self.logprobs = np.zeros((count, capacity), dtype=np.float32)
        self.weight_versions = np.zeros((count, capacity), dtype=np.int32)
        """Of the weights that sampled each token."""
        self.length = np.zeros(count, dtype=np.int64)
        """Number of tokens in ``ids``, prompt and output."""
        self.limit = np.zeros(count, dtype=np.int64)
        """Length at which the request ends."""
        self.temperature = np.ones(count, dtype=np.float32)
        self.top_p = np.ones(count, dtype=np.float32)
        self.top_k = np.zeros(count, dtype=np.int64)
        self.seed = np.zeros(count, dtype=np.uint64)
        self.epoch = np.zeros(count, dtype=np.int64)
        """Number of the weights that computed the row's first keys; mixed rows are never cached."""
        self.watches_text = np.zeros(count, dtype=np.bool_)
        """True if the request has stop strings."""
        self.planned = np.zeros(count, dtype=np.bool_)
        """True if the request has a plan of weights."""
        self.stop_ids = np.full((count, 4), NO_STOP_ID, dtype=np.int64)

    @property
    def kv(self) -> KvStore:
        """The keys and values of the weights in use."""
        return self.keys.kv

    @property
    def routing(self) -> RoutingArray:
        """The routing of the weights in use, int16 [count, capacity, layers, top_k]."""
        return self.keys.routing

    @property
    def computed(self) -> NDArray[np.int64]:
        """Number of positions with stored keys and values; ``length - 1`` for a decoding row."""
        return self.keys.computed

    def add(self, request: Request, seed: int, epoch: int) -> int:
        """Put ``request`` into the next free row, in the prefilling part, and return the row."""
        row, ids, sampling = self.used, request.ids, request.sampling
        self.used += 1
        self.requests.append(request)
        self.ids[row, : len(ids)] = ids
        begin = len(request.prompt)
        self.logprobs[row, begin : len(ids)] = request.logprobs
        self.weight_versions[row, begin : len(ids)] = request.weight_versions
        self.length[row] = len(ids)
        self.computed[row] = 0
        if self.next_keys is not None:
            self.next_keys.computed[row] = 0
        self.limit[row] = request.max_tokens
        self.temperature[row] = sampling.temperature
        self.top_p[row] = sampling.top_p
        self.top_k[row] = sampling.top_k if sampling.top_k > 0 else np.iinfo(np.int64).max
        self.seed[row] = seed
        self.epoch[row] = epoch
        self.watches_text[row] = bool(sampling.stop)
        self.planned[row] = request.plan is not None
        missing = len(sampling.stop_ids) - self.stop_ids.shape[1]
        if missing > 0:
            self.stop_ids = np.pad(
                self.stop_ids, ((0, 0), (0, missing)), constant_values=NO_STOP_ID
            )
        self.stop_ids[row] = NO_STOP_ID
        self.stop_ids[row, : len(sampling.stop_ids)] = sampling.stop_ids
        return row

    def remove(self, row: int) -> None:
        """Free ``row``; the last row of its part, then of the prefilling part, fills the gap."""
        if row < self.decoding:
            self.decoding -= 1
            self._move(self.decoding, row)
            row = self.decoding
        self.used -= 1
        self._move(self.used, row)
        self.requests.pop()

    def output(self, row: int) -> tuple[IdArray, LogprobArray, IdArray]:
        """Return copies of what the row has sampled: ids int32 [m], logprobs float32 [m] and weight
        versions int32 [m].
        """
        span = row, slice(len(self.requests[row].prompt), int(self.length[row]))
        return self.ids[span].copy(), self.logprobs[span].copy(), self.weight_versions[span].copy()

    def output_routing(self, row: int) -> RoutingArray:
        """Return the rows that sampled the row's tokens, int16 [m, layers, top_k]."""
        request = self.requests[row]
        begin = len(request.prompt) - 1  # a position's row chose the token after it
        found = self.routing[row, begin : int(self.length[row]) - 1].copy()
        if request.routing is not None:
            found[: len(request.routing)] = request.routing
        return found

    def batch_sampling(self, count: int) -> BatchSampling:
        """Return the sampling settings of rows ``0 … count-1``, for the token after their last."""
        return BatchSampling(
            self.temperature[:count],
            self.top_p[:count],
            self.top_k[:count],
            self.seed[:count],
            self.length[:count],
        )

    def _move(self, source: int, target: int) -> None:
        if source == target:
            return
        length = int(self.length[source])
        self.requests[target] = self.requests[source]
        self.ids[target, :length] = self.ids[source, :length]
        self.logprobs[target, :length] = self.logprobs[source, :length]
        self.weight_versions[target, :length] = self.weight_versions[source, :length]
        self.keys.move(source, target)
        if self.next_keys is not None:
            self.next_keys.move(source, target)
        for values in (
            self.length, self.limit, self.temperature, self.top_p, self.top_k,
            self.seed, self.epoch, self.watches_text, self.planned, self.stop_ids,
        ):  # fmt: skip
            values[target] = values[source]
