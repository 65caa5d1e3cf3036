"""Reads a run's ``status.json``, for machines that cannot open its store.

SQLite's write-ahead log needs memory that its users share. Over a network file system, another
machine may therefore open a store only while nobody writes it. A driver that is followed from
elsewhere replaces ``status.json`` with every heartbeat (``observe/remote_status.py``).
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from runners.records.store.run_state import REMOTE_SILENCE_S, State
from runners.records.text import loads

STATUS_FILE = "status.json"


def read_status_file(run_dir: Path) -> dict[str, Any] | None:
    """Return the last status that was written in ``run_dir``, None if there is none."""
    try:
        document: dict[str, Any] = loads((run_dir / STATUS_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return document


def find_remote_driver(run_dir: Path) -> str | None:
    """Return the host whose driver has the run's store open; None if it is this host or no driver
    lives. A driver counts as dead when its status file is older than ``REMOTE_SILENCE_S``.
    """
    status = read_status_file(run_dir)
    if status is None or status.get("state") != State.RUNNING:
        return None
    host = str(status.get("driver_host"))
    silent_s = time.time() - float(status.get("updated_at") or 0.0)
    return None if host == socket.gethostname() or silent_s > REMOTE_SILENCE_S else host
