"""Names that the other districts may import."""

from __future__ import annotations

from runners.observe.adviser.adviser import advise_run
from runners.observe.adviser.history import DUPLICATES
from runners.observe.adviser.metric_lines import MetricLines

__all__ = [
    "DUPLICATES",
    "MetricLines",
    "advise_run",
]
