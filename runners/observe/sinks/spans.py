"""Send the spans of attempts to an OpenTelemetry collector (OTLP over HTTP).

One attempt is one trace: a span for the whole, one for each stage, one for each model call, made of
the stored record when the attempt is over, so that a run's own steps need no tracing, wherever they
happen. They have names, times and numbers: no prompt, no answer, no key, no path. Ids are made of
the run's and the session's, so an attempt that is sent twice is the same trace.

OpenTelemetry's exporter sends them in a thread, repeats what may pass on a second try, and reads
headers and certificates from its own variables (``OTEL_EXPORTER_OTLP_HEADERS``, …).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.errors import error_text
from conf.sections.observe import OtlpConfig
from runners.observe.figures.swimlane import without_texts
from runners.records.outcome import OutcomeClass, Stage, order_stages
from runners.records.record import MAIN_THREAD, TASK_SET, RolloutRecord
from runners.records.store import SAMPLED_TOKENS, RunStore
from runners.records.text import make_printable, shorten

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

PATH = "/v1/traces"
SEND_S = 10.0
"""Time of one attempt's request, the exporter's retries included."""
MOST = 1000
"""Attempts that wait; newer ones are dropped."""
CLOSE_S = 30.0
"""Time for those that wait when the run has ended."""
SHOWN_CHARS = 300

_log = logging.getLogger(__name__)
_exporter_log = logging.getLogger("opentelemetry.exporter")
"""It says there, and nowhere else, why an export has failed."""

Value = str | bool | int | float
"""Of an attribute."""


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """A span with those inside it."""

    name: str
    start: float
    """Unix seconds."""
    seconds: float
    attributes: dict[str, Value]
    failed: bool = False
    inside: tuple[SpanFacts, ...] = field(default=())

    @property
    def end(self) -> float:
        """Unix seconds."""
        return self.start + self.seconds


def describe_attempt(store: RunStore, record: RolloutRecord, ended_at: float) -> SpanFacts:
    """Return the spans of an attempt, with its turns in the store.

    Stages follow each other; their places are reckoned from the session's creation, which is the
    end of ``session``, or else from ``ended_at``, Unix seconds.
    """
    spent = {name: record.timings.get(name, 0.0) for name in order_stages(record.timings)}
    opened = store.query(
        "SELECT created_at FROM session WHERE session_id = ?", (record.session_id,)
    )
    before = spent[Stage.QUEUE] + spent[Stage.SESSION]
    begun = opened[0][0] - before if opened else ended_at - sum(spent.values())
    turns = tuple(_describe_turns(store, record.session_id))
    stages, at = [], begun
    for name, seconds in spent.items():
        if name in record.timings:
            inside = turns if name == Stage.HARNESS else ()
            stages.append(SpanFacts(name, at, seconds, {}, inside=inside))
        at += seconds
    failing = record.outcome.outcome_class in (OutcomeClass.INFRA, OutcomeClass.INTERNAL)
    return SpanFacts(
        "rollout",
        begun,
        at - begun,
        dict(_describe_record(record)),
        failed=failing,
        inside=tuple(stages),
    )


def _describe_record(record: RolloutRecord) -> Iterator[tuple[str, Value]]:
    yield "agentrl.step", record.step
    yield "agentrl.split", record.split
    yield "agentrl.group", record.group
    yield "agentrl.member", record.member
    yield "agentrl.rollout_id", record.rollout_id
    yield "agentrl.attempt", record.attempt
    yield "agentrl.final", record.counts
    yield "agentrl.task", record.task_id
    if TASK_SET in record.extra:
        yield "agentrl.task_set", str(record.extra[TASK_SET])
    yield "agentrl.outcome", record.outcome.code.value
    yield "agentrl.outcome_stage", record.outcome.stage.value
    if record.solved is not None:
        yield "agentrl.solved", record.solved
    if record.reward is not None:
        yield "agentrl.reward", record.reward
    yield "agentrl.turns", record.turns
    yield "agentrl.sampled_tokens", record.sampled_tokens


def _describe_turns(store: RunStore, session_id: str) -> Iterator[SpanFacts]:
    rows = store.query(
        "SELECT turn_index, thread, branch, finish_reason, weight_version, usage, started_at, "
        f"engine_s, total_s, {SAMPLED_TOKENS} AS sampled FROM turn WHERE session_id = ? "
        "ORDER BY turn_index",
        (session_id,),
    )
    threads = {MAIN_THREAD: MAIN_THREAD}
    for row in rows:
        # A program names its threads as it likes, and a task's text may be in a name.
        thread = threads.setdefault(row["thread"], f"thread-{len(threads)}")
        usage = json.loads(row["usage"])
        yield SpanFacts(
            "turn",
            row["started_at"],
            row["total_s"],
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.usage.input_tokens": int(usage.get("prompt_tokens", 0)),
                "gen_ai.usage.output_tokens": int(row["sampled"]),
                "agentrl.finish_reason": row["finish_reason"],
                "agentrl.turn": row["turn_index"],
                "agentrl.thread": thread,
                "agentrl.branch": row["branch"],
                "agentrl.weight_version": row["weight_version"],
                "agentrl.engine_s": row["engine_s"],
            },
        )


def make_spans(facts: SpanFacts, *, run: str, seed: str) -> list[ReadableSpan]:
    """Return the spans of a trace whose ids are made of ``seed``, the root last."""
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    from opentelemetry.trace import Status, StatusCode, set_span_in_context

    ids = _ids(seed)

    class Ids(IdGenerator):
        def generate_span_id(self) -> int:
            return next(ids) >> 192

        def generate_trace_id(self) -> int:
            return next(ids) >> 128

    ended: list[ReadableSpan] = []

    class Collector(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            ended.append(span)

    resource = Resource.create({"service.name": "agentrl", "agentrl.run": run})
    provider = TracerProvider(
        resource=resource, sampler=ALWAYS_ON, id_generator=Ids(), shutdown_on_exit=False
    )
    provider.add_span_processor(Collector())
    tracer = provider.get_tracer("agentrl")

    def add(each: SpanFacts, context: Any) -> None:
        span = tracer.start_span(
            each.name, context, attributes=each.attributes, start_time=_nanoseconds(each.start)
        )
        for inner in each.inside:
            add(inner, set_span_in_context(span))
        if each.failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nanoseconds(each.end))

    add(facts, Context())
    return ended


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _ids(seed: str) -> Iterator[int]:
    """Yield numbers of 256 bits."""
    number = 0
    while True:
        yield int.from_bytes(sha256(f"{seed}/{number}".encode()).digest())
        number += 1


class FirstMessage(logging.Handler):
    """Keeps a logger's first message; without a handler Python would print each on stderr."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message, unless there is one: those after it say less (``max retries``)."""
        self.text = self.text or record.getMessage()


class SpanFeed:
    """Takes attempts on the loop; a thread makes their spans and sends them, in order.

    Nothing that the collector does delays the caller or raises at it.
    """

    def __init__(self, run_dir: Path, url: str, report: Callable[[str], None]) -> None:
        """Make the exporter, which connects to nothing yet; raises what it does if a variable of
        its own is wrong. ``report`` is called in the thread, with the first failure.
        """
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        # Any: its `shutdown` has no types.
        self._exporter: Any = OTLPSpanExporter(endpoint=url + PATH, timeout=SEND_S)
        self._run_dir = run_dir
        self._report = report
        self._reason = FirstMessage()
        _exporter_log.addHandler(self._reason)
        self._pool = ThreadPoolExecutor(1, "sink opentelemetry")
        self._store: RunStore | None = None
        self._told = False
        self._added = self._done = self._sent = 0
        """Attempts that were queued, that the thread is done with, that arrived."""
        self._dropped = 0

    def add(self, record: RolloutRecord) -> None:
        """Queue the spans of an attempt that is stored."""
        if self._added - self._done >= MOST:
            self._dropped += 1
            return
        self._added += 1
        kept = {TASK_SET: record.extra[TASK_SET]} if TASK_SET in record.extra else {}
        # without texts and verdict: many may wait
        self._pool.submit(self._send, replace(without_texts(record), extra=kept), time.time())

    def close(self) -> str:
        """Send what waits, for a while, and end; blocks. Return what was not delivered, or ""."""
        with suppress(TimeoutError):
            self._pool.submit(self._end).result(CLOSE_S)
        self._exporter.shutdown()  # ends the waits between its retries
        self._pool.shutdown(wait=False, cancel_futures=True)
        _exporter_log.removeHandler(self._reason)
        lost = self._added - self._sent + self._dropped
        return f"opentelemetry: {lost:,} entries were not delivered" if lost else ""

    def _send(self, record: RolloutRecord, ended_at: float) -> None:
        try:
            self._store = self._store or RunStore.open(self._run_dir, read_only=True)
            facts = describe_attempt(self._store, record, ended_at)
            seed = f"{self._store.run_id}/{record.session_id}"
            self._reason.text = ""
            spans = make_spans(facts, run=self._run_dir.name, seed=seed)
            if self._exporter.export(spans).name == "SUCCESS":
                self._sent += 1
            else:
                self._tell(f"the collector does not take spans: {self._reason.text}")
        except Exception as error:
            self._tell(f"{type(error).__name__}: {error_text(error)}")
        finally:
            self._done += 1

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            text = make_printable(shorten(text, SHOWN_CHARS))
            self._report(f"opentelemetry fails, the run goes on: {text}")

    def _end(self) -> None:
        if self._store is not None:
            self._store.close()


@asynccontextmanager
async def open_span_feed(config: OtlpConfig, store: RunStore) -> AsyncIterator[SpanFeed | None]:
    """Yield where attempts go while the block runs; None if no collector is configured."""
    if config.url is None:
        yield None
        return
    loop = asyncio.get_running_loop()

    def note(text: str) -> None:
        _log.warning("%s", text)
        store.event("sink_failed", {"error": text})

    def tell(text: str) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process exits
            loop.call_soon_threadsafe(note, text)

    feed = SpanFeed(store.run_dir, config.url, tell)
    try:
        yield feed
    finally:
        if missing := await asyncio.to_thread(feed.close):
            note(missing)
