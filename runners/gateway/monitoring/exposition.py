"""Write counts in Prometheus's text format, by its own client library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from runners.gateway.monitoring.counts import BUCKETS_S

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PREFIX = "agentrl_gateway_"
GAUGES = {
    "sessions": "Open sessions.",
    "turns_in_flight": "Turns that are being taken.",
    "engine_calls": "Calls at the engine.",
    "engine_calls_waiting": "Calls that wait for a place at the engine.",
    "engine_calls_limit": "Calls that may be at the engine now.",
}
COUNTERS = {
    "prompt_tokens": "Tokens of the prompts of stored turns.",
    "sampled_tokens": "Sampled tokens of stored turns.",
    "aborted": "Generations that were cut off because nobody waited any more.",
    "failed": "Generations that failed at the engine.",
    "request_bytes": "Bytes of the bodies of requests for turns.",
    "answer_bytes": "Bytes of the bodies that answer them.",
}
HISTOGRAMS = {
    "turn": "Seconds of a stored turn, from its request to its answer.",
    "engine": "Seconds of a stored turn in the engine.",
}


def write_exposition(process: str, counts: Mapping[str, Any]) -> bytes:
    """Return the text for what a process of a gateway has counted (``admin_api.measure``)."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Counts(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from _make_metrics(process, counts)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Counts())
    return generate_latest(registry)


def _make_metrics(process: str, counts: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    for name, text in GAUGES.items():
        gauge = GaugeMetricFamily(PREFIX + name, text, labels=["process"])
        gauge.add_metric([process], counts[name])
        yield gauge
    for name, text in COUNTERS.items():
        counter = CounterMetricFamily(PREFIX + name, text, labels=["process"])
        counter.add_metric([process], counts[name])
        yield counter
    answers = CounterMetricFamily(
        f"{PREFIX}answers", "Answered requests, by HTTP status.", labels=["process", "status"]
    )
    for status, number in sorted(counts["answers"].items()):
        answers.add_metric([process, status], number)
    yield answers
    for name, text in HISTOGRAMS.items():
        histogram = HistogramMetricFamily(f"{PREFIX}{name}_seconds", text, labels=["process"])
        found = counts[name]
        histogram.add_metric([process], list(_add_up(found["counts"])), found["total_s"])
        yield histogram


def _add_up(counts: list[int]) -> Iterator[tuple[str, float]]:
    """Return each upper bound with the number of durations up to it."""
    return zip((*map(str, BUCKETS_S), "+Inf"), accumulate(counts), strict=True)
