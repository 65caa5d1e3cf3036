"""Continuous batching: choose the running requests, compute a step, end the finished ones.

A step admits waiting requests, runs one forward pass over a bounded number of prompt tokens and one
token of every decoding row, samples, and resolves what ended. Invariant: single-threaded; only the
core's worker thread calls it.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runners.engines.embedded.attention import PrefillSpan, decode_blocks
from runners.engines.embedded.model import PackedStep, Qwen3Moe
from runners.engines.embedded.prefix_cache import PrefixCache
from runners.engines.embedded.request import EngineTokenizer, Request, RequestResult
from runners.engines.embedded.rows import Rows
from runners.engines.embedded.sampling import sample
from runners.engines.embedded.weight_change import WeightChange

PREFILL_TOKENS = 1024
"""Most prompt tokens in a step: bounds how long a long prompt delays the decoding rows."""

MIN_SHARED_TOKENS = 32
"""A request that shares this many uncached tokens with one in prefill waits, and reuses its prefix.
"""


class Scheduler:
    """The batch, the queue and the prefix cache of one engine."""

    def __init__(
        self,
        model: Qwen3Moe,
        *,
        max_running_requests: int,
        cache_tokens: int,
        max_context_tokens: int,
        weight_version: int,
        tokenizer: EngineTokenizer | None,
    ) -> None:
        self.model = model
        self.weight_version = weight_version
        self.cache_tokens = cache_tokens
        self.waiting: deque[Request] = deque()
        self.rows = Rows(model.config, max_running_requests, max_context_tokens)
        self.cache = PrefixCache()
        self.steps = 0
        self.generated_tokens = 0
        self.planned_tokens: Counter[int] = Counter()
        """Tokens of requests with a plan, by the version of the weights that sampled them."""
        self._epoch = 0
        self._change: WeightChange | None = None
        self._tokenizer = tokenizer

    @property
    def idle(self) -> bool:
        """Return whether nothing runs or waits."""
        return not self.rows.used and not self.waiting

    @property
    def has_work(self) -> bool:
        """Return whether something runs, waits for no other weights, or weights are to change."""
        if self.rows.used or self._change is not None:
            return True
        return any(not self._is_held(request) for request in self.waiting)

    def step(self) -> None:
        """Advance the running requests by one forward pass and resolve those that end; then, while
        weights are about to change, make the rows ready for a slice's time.
        """
        self._admit()
        if self.rows.used:
            self._sample_step()
        if self._change is not None and self._change.advance(self.rows):
            self._finish_change(self._change)

    def _sample_step(self) -> None:
        rows = self.rows
        spans = self._spans()
        step, sampled, scored = self._pack(spans)
        with torch.inference_mode():
            logits, routing = self.model.forward(step, rows.kv)
            self._advance(step, spans, routing)
            if sampled:
                ids, logprobs = sample(logits[:sampled], rows.batch_sampling(sampled))
            self._score(logits[sampled:], scored)
        self._cache_prompts(rows.decoding, sampled)
        rows.decoding = sampled
        self.steps += 1
        if sampled:
            self._append(ids, logprobs)
            self._finish(ids)
            self._hold()
        self._shrink_cache()

    def abort(self, matches: Callable[[str], bool]) -> None:
        """End every request whose rid matches; its result is what it has sampled so far."""
        for request in [request for request in self.waiting if matches(request.rid)]:
            self.waiting.remove(request)
            output = request.output_ids, request.logprobs, request.weight_versions
            self._resolve(request, output, _aborted(), None)
        for row in reversed(range(self.rows.used)):
            if matches(self.rows.requests[row].rid):
                self._end(row, _aborted())

    def retract(self) -> None:
        """Put all running requests back into the queue; admission computes them again."""
        for row in reversed(range(self.rows.used)):
            self._retract(row)

    def _retract(self, row: int) -> None:
        request = self.rows.requests[row]
        request.routing = self.rows.output_routing(row)
        request.output_ids, request.logprobs, request.weight_versions = self.rows.output(row)
        request.retractions += 1
        self.waiting.appendleft(request)
        self.rows.remove(row)

    def flush(self) -> None:
        """Forget all cached prefixes."""
        self.cache.clear()

    def begin_change(
        self, model: Qwen3Moe, weight_version: int | None, done: Callable[[int], None]
    ) -> None:
        """Change to other weights once they have computed the keys of all decoding rows, slice by
        slice between the next steps; None keeps the version.

        What a request samples from then on is the new weights' on exactly its prefix. ``done`` is
        called in that moment with the number of requests that were running.
        """
        self.hasten_change()
        self._change = WeightChange(model, weight_version, self.rows, done)

    def hasten_change(self) -> None:
        """If weights are about to change, change them now: all running requests go back into the
        queue and are computed again.
        """
        change = self._change
        if change is None:
            return
        running = self.rows.used
        self.retract()
        self._use(change.model, change.version)
        self.cache = change.cache
        self._end_change(change, running)

    def _finish_change(self, change: WeightChange) -> None:
        """Continue the rows that are ready with the new weights, and put back all others."""
        rows, running = self.rows, self.rows.used
        for row in reversed(range(running)):
            request = rows.requests[row]
            if row < rows.decoding and change.covers(request):
                request.routing = rows.output_routing(row)
            else:
                self._retract(row)
        rows.keys = change.keys
        self._use(change.model, change.version)
        self.cache = change.cache
        rows.epoch[: rows.decoding] = self._epoch
        self._end_change(change, running)

    def _end_change(self, change: WeightChange, running: int) -> None:
        self.rows.next_keys = self._change = None
        self._shrink_cache()
        change.done(running)

    def replace_model(self, model: Qwen3Moe, weight_version: int | None) -> None:
        """Continue with other weights at once; None keeps the version.

        Running requests keep the keys that the old weights computed, and are never cached.
        """
        self.hasten_change()
        self._use(model, weight_version)

    def _use(self, model: Qwen3Moe, weight_version: int | None) -> None:
        self.model = model
        if weight_version is not None:
            self.weight_version = weight_version
        self._epoch += 1
        self.flush()

    # --- admission ----------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give waiting requests free rows, in order, while their greatest length fits the cache.

        Admitting by the greatest length, not the present one, means that no row is ever evicted for
        want of memory.
        """
        rows = self.rows
        if not self.waiting or rows.used == rows.count:
            return
        reserved = int(rows.limit[: rows.used].sum())
        passed: list[Request] = []
        while self.waiting and rows.used < rows.count:
            request = self.waiting.popleft()
            if self._is_held(request):
                passed.append(request)
                continue
            if reserved + request.max_tokens > self.cache_tokens:
                self.waiting.appendleft(request)
                break
            if self._shares_prefill(request):
                passed.append(request)
                continue
            reserved += request.max_tokens
            self._start(request)
        self.waiting.extendleft(reversed(passed))

    def _is_held(self, request: Request) -> bool:
        return request.waits_for_weights(len(request.output_ids), self.weight_version)

    def _hold(self) -> None:
        """Put back the rows whose next token is to have newer weights."""
        rows = self.rows
        for row in map(int, reversed(np.flatnonzero(rows.planned[: rows.decoding]))):
            request = rows.requests[row]
            sampled = int(rows.length[row]) - len(request.prompt)
            if request.waits_for_weights(sampled, self.weight_version):
                self._retract(row)

    def _shares_prefill(self, request: Request) -> bool:
        """Return whether a row in prefill is about to compute a large part of this prompt."""
        rows = self.rows
        if rows.decoding == rows.used:
            return False
        ids = request.ids[:-1]
        end = self.cache.match(ids) + MIN_SHARED_TOKENS
        if end > len(ids):
            return False
        part = slice(rows.decoding, rows.used)
        found = (rows.ids[part, :end] == ids[:end]).all(1) & (rows.length[part] >= end)
        return bool(found.any())

    def _start(self, request: Request) -> None:
        seed = request.sampling.seed
        if seed is None:
            seed = random.getrandbits(63)
        row = self.rows.add(request, seed % 2**64, self._epoch)
        # without its last token, which is always computed: its logits give the next token; and
        # without those whose logits give the logprobs that are asked for
        kept = self.rows.length[row] - 1
        if request.logprob_start is not None:
            kept = min(kept, request.logprob_start)
        held = self.cache.restore(
            self.rows.ids[row, :kept],
            self.rows.kv,
            row,
            self.rows.routing[row],
        )
        self.rows.computed[row] = held
        if request.admitted_at is None:
            request.admitted_at = time.monotonic()
            request.cached_tokens = held

    # --- one step -----------------------------------------------------------------------------

    def _spans(self) -> tuple[PrefillSpan, ...]:
        """Divide this step's prefill budget among the prefilling rows, in order.

        So rows whose prompt is completed come before the one that is not: ``_pack`` relies on it.
        """
        rows, budget, spans = self.rows, PREFILL_TOKENS, []
        for row in range(rows.decoding, rows.used):
            start = int(rows.computed[row])
            count = min(int(rows.length[row]) - start, budget)
            if not count:
                break
            budget -= count
            spans.append(PrefillSpan(row, start, count))
        return tuple(spans)

    def _pack(
        self, spans: tuple[PrefillSpan, ...]
    ) -> tuple[PackedStep, int, tuple[PrefillSpan, ...]]:
        """Return the input of the forward pass, how many of the first rows get a token, and the
        positions after them whose logits give logprobs of prompts.
        """
        rows, decoding = self.rows, self.rows.decoding
        row_index = np.arange(decoding)
        positions = rows.computed[:decoding]
        if spans:
            row_index = np.concatenate(
                [row_index, *(np.full(span.size, span.row) for span in spans)]
            )
            positions = np.concatenate(
                [positions, *(np.arange(span.start, span.start + span.size) for span in spans)]
            )
        completed = [s for s in spans if s.start + s.size == rows.length[s.row]]
        wanted = None
        scored: list[PrefillSpan] = []
        if spans:
            ends = decoding - 1 + np.cumsum([span.size for span in spans])
            places = [np.arange(decoding), ends[: len(completed)]]
            for span, end in zip(spans, ends, strict=True):
                part = self._find_scored(span)
                if part is not None:
                    scored.append(part)
                    first = end + 1 - span.size + part.start - span.start
                    places.append(np.arange(first, first + part.size))
            wanted = np.concatenate(places)
        lengths = rows.length[:decoding]
        step = PackedStep(
            tokens=rows.ids[row_index, positions],
            positions=positions,
            slots=rows.kv.slots(row_index, positions),
            decoding=decoding,
            lengths=lengths.tolist(),
            blocks=decode_blocks(lengths),
            spans=spans,
            wanted=wanted,
        )
        return step, decoding + len(completed), tuple(scored)

    def _find_scored(self, span: PrefillSpan) -> PrefillSpan | None:
        """Return the part of a span whose logits give wanted logprobs: each of the next token."""
        request = self.rows.requests[span.row]
        if request.logprob_start is None:
            return None
        start = max(span.start, request.logprob_start)
        end = min(span.start + span.size, len(request.prompt) - 1)
        return PrefillSpan(span.row, start, end - start) if end > start else None

    def _score(self, logits: Tensor, scored: tuple[PrefillSpan, ...]) -> None:
        """Keep the logprobs of the tokens after the scored positions; ``logits`` float32 [n, V]."""
        rows, offset = self.rows, 0
        for row, start, size in scored:
            following = torch.from_numpy(
                rows.ids[row, start + 1 : start + 1 + size].astype(np.int64)
            )
            logprobs = logits[offset : offset + size].log_softmax(-1)
            found = logprobs.gather(1, following[:, None])[:, 0]
            rows.logprobs[row, start + 1 : start + 1 + size] = found.numpy()
            offset += size

    def _advance(
        self, step: PackedStep, spans: tuple[PrefillSpan, ...], routing: NDArray[np.int16]
    ) -> None:
        rows, decoding = self.rows, step.decoding
        rows.routing[np.arange(decoding), rows.computed[:decoding]] = routing[:decoding]
        rows.computed[:decoding] += 1
        offset = decoding
        for span in spans:
            end = span.start + span.size
            rows.routing[span.row, span.start : end] = routing[offset : offset + span.size]
            rows.computed[span.row] = end
            offset += span.size

    def _append(self, ids: NDArray[np.int64], logprobs: NDArray[np.float32]) -> None:
        rows, count = self.rows, self.rows.decoding
        index, at = np.arange(count), rows.length[:count]
        rows.ids[index, at] = ids
        rows.logprobs[index, at] = logprobs
        rows.weight_versions[index, at] = self.weight_version
        # a request for no tokens (max_new_tokens=0 only warms the cache) is at its limit already
        rows.length[:count] = np.minimum(at + 1, rows.limit[:count])
        self.generated_tokens += count
        planned = int(np.count_nonzero(rows.planned[:count]))
        if planned:
            self.planned_tokens[self.weight_version] += planned

    # --- endings ------------------------------------------------------------------------------

    def _finish(self, ids: NDArray[np.int64]) -> None:
        rows, count = self.rows, self.rows.decoding
        stopped = (rows.stop_ids[:count] == ids[:, None]).any(1)
        # a row at its limit got no new token (``_append``), so its last one cannot be a stop
        stopped &= rows.length[:count] > rows.computed[:count]
        done = stopped | (rows.length[:count] >= rows.limit[:count])
        if not (done.any() or rows.watches_text[:count].any()):
            return
        ended: dict[int, dict[str, Any]] = {}
        for row in np.flatnonzero(rows.watches_text[:count] & ~stopped):
            matched = self._matched_text(int(row))
            if matched is not None:
                ended[int(row)] = {"type": "stop", "matched": matched}
        for row in np.flatnonzero(done):
            if stopped[row]:
                ended[int(row)] = {"type": "stop", "matched": int(ids[row])}
            elif int(row) not in ended:
                output = int(rows.length[row]) - len(rows.requests[row].prompt)
                ended[int(row)] = {"type": "length", "length": output}
        for index in sorted(ended, reverse=True):  # removing a row moves later ones into it
            self._end(index, ended[index])

    def _matched_text(self, row: int) -> str | None:
        assert self._tokenizer is not None
        request = self.rows.requests[row]
        stops = request.sampling.stop
        # a token is at least one byte, so these tokens contain the longest stop string; 4 more, for
        # a character of UTF-8 that begins before it
        window = max(len(stop.encode()) for stop in stops) + 4
        end = int(self.rows.length[row])
        begin = max(len(request.prompt), end - window)
        text = self._tokenizer.decode(
            self.rows.ids[row, begin:end].tolist(), skip_special_tokens=False
        )
        return next((stop for stop in stops if stop in text), None)

    def _end(self, row: int, reason: dict[str, Any]) -> None:
        rows, request = self.rows, self.rows.requests[row]
        output, routing = rows.output(row), None
        if request.routing_start is not None:
            # the last token was never an input; a row aborted during prefill has computed less
            end = min(int(rows.computed[row]), int(rows.length[row]) - 1)
            found = rows.routing[row, :end].copy()
            begin = len(request.prompt) - 1
            if request.routing is not None and end > begin:
                found[begin:] = rows.output_routing(row)[: end - begin]
            routing = found[request.routing_start :]
        scores = None
        if request.logprob_start is not None and reason["type"] != "abort":
            scores = rows.logprobs[row, request.logprob_start : len(request.prompt)].copy()
            scores[0] = 0.0
        self._cache_row(row)
        if self._change is not None:
            self._change.keep(rows, row)
        rows.remove(row)
        self._shrink_cache()  # now: before, the row would count twice and push out itself
        self._resolve(request, output, reason, routing, scores)

    def _resolve(
        self,
        request: Request,
        output: tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]],
        reason: dict[str, Any],
        routing: NDArray[np.int16] | None,
        input_logprobs: NDArray[np.float32] | None = None,
    ) -> None:
        now = time.monotonic()
        output_ids, logprobs, versions = output
        finished = RequestResult(
            output_ids=output_ids,
            logprobs=logprobs,
            finish_reason=reason,
            cached_tokens=request.cached_tokens,
            retractions=request.retractions,
            weight_version=int(versions[-1]) if len(versions) else self.weight_version,
            weight_versions=versions,
            routing=routing,
            input_logprobs=input_logprobs,
            queue_s=(request.admitted_at or now) - request.arrived_at,
            total_s=now - request.arrived_at,
        )
        request.result.set_result(finished)

    # --- prefix cache -------------------------------------------------------------------------

    def _cache_prompts(self, begin: int, end: int) -> None:
        """Cache the prompts that were just completed, before their outputs are."""
        for row in range(begin, end):
            self._cache_row(row)

    def _cache_row(self, row: int) -> None:
        rows = self.rows
        if rows.epoch[row] != self._epoch:
            return  # part of its keys comes from other weights
        self.cache.insert(rows.ids[row, : rows.computed[row]], rows.kv, row, rows.routing[row])

    def _shrink_cache(self) -> None:
        """Leave the cache what the running rows do not hold."""
        held = int(self.rows.length[: self.rows.used].sum())
        left = max(0, self.cache_tokens - held)
        self.cache.shrink(left)
        if self._change is not None:
            self._change.cache.shrink(left)


def _aborted() -> dict[str, Any]:
    return {
        "type": "abort",
        "message": "Aborted by the client",
        "status_code": None,
        "err_type": None,
    }
