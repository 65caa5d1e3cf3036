"""Names that the other districts may import."""

from __future__ import annotations

from runners.observe.sinks.libraries import find_sink_errors
from runners.observe.sinks.open_trackers import TrackerFeed
from runners.observe.sinks.plugin_feed import MetricsSink, SinkFeed
from runners.observe.sinks.spans import open_span_feed
from runners.observe.sinks.tracker import Ending

__all__ = [
    "Ending",
    "MetricsSink",
    "SinkFeed",
    "TrackerFeed",
    "find_sink_errors",
    "open_span_feed",
]
