"""Names that the other districts may import."""

from __future__ import annotations

from runners.system.concurrency.daemon_thread import run_in_daemon
from runners.system.concurrency.limits import Admission, TokenBucket, backoff_s
from runners.system.concurrency.other_loop import run_in
from runners.system.concurrency.waiting import task_group, wait_for_any

__all__ = [
    "Admission",
    "TokenBucket",
    "backoff_s",
    "run_in",
    "run_in_daemon",
    "task_group",
    "wait_for_any",
]
