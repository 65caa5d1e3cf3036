"""Send the spans of attempts to an OpenTelemetry collector (OTLP over HTTP).

One attempt is one trace. Ids are made of the run's and the session's, so an attempt that is sent
twice is the same trace. Endpoint headers and certificates are OpenTelemetry's own environment
variables (``OTEL_EXPORTER_OTLP_HEADERS``, …).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.sections.observe import OtlpConfig
from runners.observe.figures.swimlane import without_texts
from runners.observe.sinks.delivery import Delivery, Ending, EntryRefused, SinkError
from runners.observe.sinks.rollout_spans import SpanFacts, describe_attempt
from runners.records.record import TASK_SET, RolloutRecord
from runners.records.store import RunStore

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

PATH = "/v1/traces"
SEND_S = 10.0
"""Time of one request, retries of the exporter included."""
REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
"""Answers of a collector to spans that it will never take; others may pass after them."""

_log = logging.getLogger(__name__)
_exporter_log = logging.getLogger("opentelemetry.exporter")
"""It says there, and nowhere else, why an export has failed."""


class FirstMessage(logging.Handler):
    """Keeps a logger's first message; without a handler Python would print each on stderr."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message, unless there is one: those after it say less (``max retries``)."""
        self.text = self.text or record.getMessage()


class Client:
    """OpenTelemetry's exporter, with the status of the last answer and its reason."""

    def __init__(self, url: str) -> None:
        """Make the exporter, which connects to nothing yet; raises what it does if a variable of
        its own is wrong.
        """
        import requests
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        session = requests.Session()
        session.hooks["response"].append(self._note)
        # Any: its `shutdown` has no types.
        self._exporter: Any = OTLPSpanExporter(endpoint=url + PATH, timeout=SEND_S, session=session)
        self._status = 0
        self._reason = FirstMessage()
        _exporter_log.addHandler(self._reason)

    def send(self, spans: list[ReadableSpan]) -> None:
        """Send spans; raises SinkError, and EntryRefused if these are never taken."""
        self._status, self._reason.text = 0, ""
        if self._exporter.export(spans).name == "SUCCESS":
            return
        failed = EntryRefused if self._status in REFUSED else SinkError
        raise failed(f"the collector does not take spans: {self._reason.text}")

    def close(self) -> None:
        """Close the connections."""
        self._exporter.shutdown()
        _exporter_log.removeHandler(self._reason)

    def _note(self, answer: Any, *_: Any, **__: Any) -> None:
        self._status = answer.status_code


class SpanSink:
    """Sends each attempt that has ended (``delivery.Sink``)."""

    def __init__(self, run_dir: Path, url: str) -> None:
        self._run_dir = run_dir
        self._url = url
        self._client: Client | None = None
        self._store: RunStore | None = None
        self._run_id = ""

    def open(self) -> None:
        """Open the store for this thread; turns are read from it."""
        self._client = Client(self._url)
        self._store = RunStore.open(self._run_dir, read_only=True)
        self._run_id = self._store.run_id

    def take(self, entry: tuple[RolloutRecord, float]) -> None:
        """Export an attempt, which ended at that time; raises SinkError."""
        assert self._store is not None
        assert self._client is not None
        record, ended_at = entry
        facts = describe_attempt(self._store, record, ended_at)
        spans = make_spans(
            facts, run=self._run_dir.name, seed=f"{self._run_id}/{record.session_id}"
        )
        self._client.send(spans)

    def close(self, ending: Ending) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
        if self._store is not None:
            self._store.close()


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


class SpanFeed:
    """Takes attempts on the loop and hands them to the sink's thread."""

    def __init__(self, delivery: Delivery[tuple[RolloutRecord, float]]) -> None:
        self._delivery = delivery

    def add(self, record: RolloutRecord) -> None:
        """Queue the spans of an attempt that is stored."""
        kept = {TASK_SET: record.extra[TASK_SET]} if TASK_SET in record.extra else {}
        # without texts and verdict: many may wait
        self._delivery.add((replace(without_texts(record), extra=kept), time.time()))


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

    delivery = Delivery("opentelemetry", SpanSink(store.run_dir, config.url), tell)
    try:
        yield SpanFeed(delivery)
    finally:
        if missing := await asyncio.to_thread(delivery.close, Ending.FINISHED):
            note(missing)
