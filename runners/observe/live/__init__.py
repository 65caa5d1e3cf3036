"""Names that the other districts may import."""

from __future__ import annotations

from runners.observe.live.dashboard import LiveView, format_duration
from runners.observe.live.progress import Progress
from runners.observe.live.remote_status import read_remote_status, write_document
from runners.observe.live.result import (
    CampaignResult,
    metrics_rows,
    summarize,
    summarize_evaluation,
)
from runners.observe.live.run_poller import follow_run
from runners.observe.live.status import TASK_CHECK, read_status, read_store_status, render
from runners.observe.live.summary import summary_table
from runners.observe.live.under_way import read_overlapped

__all__ = [
    "TASK_CHECK",
    "CampaignResult",
    "LiveView",
    "Progress",
    "follow_run",
    "format_duration",
    "metrics_rows",
    "read_overlapped",
    "read_remote_status",
    "read_status",
    "read_store_status",
    "render",
    "summarize",
    "summarize_evaluation",
    "summary_table",
    "write_document",
]
