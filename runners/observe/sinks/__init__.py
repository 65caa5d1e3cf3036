"""Names that the other districts may import."""

from __future__ import annotations

from runners.observe.sinks.delivery import Ending
from runners.observe.sinks.libraries import find_sink_errors
from runners.observe.sinks.open_trackers import TrackerFeed
from runners.observe.sinks.otlp import open_span_feed
from runners.observe.sinks.plugin_feed import MetricsSink, SinkFeed

__all__ = [
    "Ending",
    "MetricsSink",
    "SinkFeed",
    "TrackerFeed",
    "find_sink_errors",
    "open_span_feed",
]
