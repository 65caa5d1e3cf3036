"""New weights that are made ready between the steps of the present ones.

A token needs the keys and values of all positions before it, computed by the weights that sample
it. So the tokens of the decoding rows are computed again by the new weights, in slices, while the
present weights go on sampling; once no position is missing, the scheduler changes between two
tokens, and no request waits.

Invariant: a row that is ready has exactly the keys that the new weights compute for its tokens, as
if it had never had others (``model.py``: they do not depend on how a row is cut into spans).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from runners.engines.embedded.attention import PrefillSpan, decode_blocks
from runners.engines.embedded.model import PackedStep, Qwen3Moe
from runners.engines.embedded.prefix_cache import PrefixCache
from runners.engines.embedded.request import Request
from runners.engines.embedded.rows import RowKeys, Rows

SLICE_TOKENS = 64
"""Tokens that a slice computes again, and with it each gap between two tokens grows meanwhile.
Smaller slices delay the new weights more.
"""
MIN_GAIN = 2
"""A slice computes at least this many times the tokens that a step adds, or it never catches up."""
MAX_SPANS = 4
"""Spans of a slice, each a product of its own, beyond which it computes the next token of all rows
instead, as a decode step does, ``MIN_GAIN`` times: for 16 rows that takes less than half of the
time.
"""
PATIENCE = 3
"""Slices double, and compute all rows at once, whenever this many times the slices have passed that
the first rows needed, so that new weights come however many prompts arrive meanwhile.
"""


class WeightChange:
    """New weights, and what they have computed so far of the rows; mutated by the scheduler."""

    def __init__(
        self,
        model: Qwen3Moe,
        version: int | None,
        rows: Rows,
        done: Callable[[int], None],
    ) -> None:
        """Begin with nothing computed; ``done`` is called with the number of running requests when
        the weights have changed.
        """
        self.model = model
        self.version = version
        self.done = done
        self.cache = PrefixCache()
        """Prefixes that the new weights computed."""
        self.keys = RowKeys(model.config, *rows.ids.shape)
        rows.next_keys = self.keys
        self._first: Request | None = None
        """The request whose row is computed for the first time: one at a time, so that the next
        one finds a prefix that they share.
        """
        self._slices = 0
        self._expected = 1 + int(rows.length[: rows.decoding].sum()) // SLICE_TOKENS

    def covers(self, request: Request) -> bool:
        """Return whether a request's row is made ready; else it is to be computed from its start,
        since logprobs of its prompt are wanted and have to be the new weights', too.
        """
        return request.logprob_start is None

    def advance(self, rows: Rows) -> bool:
        """Compute a slice; return whether no decoding row misses a position any more."""
        doublings = min(self._slices // (PATIENCE * self._expected), 16)
        spans = self._spans(rows, doublings)
        if len(spans) > MAX_SPANS and not doublings:
            for _ in range(MIN_GAIN):
                self._compute_next(rows)
        elif spans:
            self._compute(rows, spans)
        self._slices += 1
        row = self._row_of(rows, self._first)
        if row is not None and not self._missing(rows, row):
            self.keep(rows, row)
            self._first = None
        return not any(self._missing(rows, row) for row in range(rows.decoding))

    def keep(self, rows: Rows, row: int) -> None:
        """Cache what is computed of a row."""
        computed = self.keys.computed[row]
        self.cache.insert(rows.ids[row, :computed], self.keys.kv, row, self.keys.routing[row])

    def _spans(self, rows: Rows, doublings: int) -> tuple[PrefillSpan, ...]:
        """Return the spans of a slice, those of the rows that miss most first."""
        budget = max(SLICE_TOKENS, MIN_GAIN * rows.decoding) << doublings
        first = None if doublings else self._find_first(rows)
        spans = []
        behind = sorted(range(rows.decoding), key=lambda row: -self._missing(rows, row))
        for row in behind if first is None else (first,):
            count = min(self._missing(rows, row), budget)
            if count:
                spans.append(PrefillSpan(row, int(self.keys.computed[row]), count))
                budget -= count
        return tuple(spans)

    def _find_first(self, rows: Rows) -> int | None:
        """Return the row to compute for the first time; None when all are being caught up with."""
        row = self._row_of(rows, self._first)
        if row is not None:
            return row
        for row in range(rows.decoding):
            if self.keys.computed[row] or not self._missing(rows, row):
                continue
            held = rows.ids[row, : rows.computed[row]]
            self.keys.computed[row] = self.cache.restore(
                held, self.keys.kv, row, self.keys.routing[row]
            )
            if self._missing(rows, row):
                self._first = rows.requests[row]
                return row
        return None

    def _row_of(self, rows: Rows, request: Request | None) -> int | None:
        decoding = rows.requests[: rows.decoding]
        return decoding.index(request) if request is not None and request in decoding else None

    def _missing(self, rows: Rows, row: int) -> int:
        if not self.covers(rows.requests[row]):
            return 0
        return int(rows.computed[row] - self.keys.computed[row])

    def _compute_next(self, rows: Rows) -> None:
        """Compute the next position of each row; of one that misses none, its last one again, since
        decoding rows are computed together.
        """
        count = rows.decoding
        missing = np.array([self._missing(rows, row) > 0 for row in range(count)])
        computed = self.keys.computed[:count]
        positions = np.maximum(np.where(missing, computed, computed - 1), 0)
        self._run(rows, np.arange(count), positions, ())
        computed += missing

    def _compute(self, rows: Rows, spans: tuple[PrefillSpan, ...]) -> None:
        row_index = np.concatenate([np.full(span.size, span.row) for span in spans])
        positions = np.concatenate(
            [np.arange(span.start, span.start + span.size) for span in spans]
        )
        self._run(rows, row_index, positions, spans)
        for span in spans:
            self.keys.computed[span.row] += span.size

    def _run(
        self,
        rows: Rows,
        row_index: NDArray[np.int64],
        positions: NDArray[np.int64],
        spans: tuple[PrefillSpan, ...],
    ) -> None:
        """Compute (row, position) pairs: those of ``spans``, or one of each row without any."""
        lengths = positions[: 0 if spans else len(positions)] + 1
        step = PackedStep(
            tokens=rows.ids[row_index, positions],
            positions=positions,
            slots=self.keys.kv.slots(row_index, positions),
            decoding=len(lengths),
            lengths=lengths.tolist(),
            blocks=decode_blocks(lengths),
            spans=spans,
            wanted=np.empty(0, np.int64),
        )
        _, routing = self.model.forward(step, self.keys.kv)
        self.keys.routing[row_index, positions] = routing
