"""How a run stands, as a plain file: for machines from which its store cannot be read.

SQLite's write-ahead log lives in the memory of one machine: over a network file system another one
may open a store only when nobody writes it. A driver that others follow replaces ``status.json``
with every heartbeat; a reader sees the old document or the new one, never a part.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runners.store.json_text import dumps, loads
from runners.store.run_state import REMOTE_SILENCE_S, State
from runners.store.store_error import store_error

STATUS_FILE = "status.json"


def publish(run_dir: Path, name: str, document: Mapping[str, Any]) -> None:
    """Write a document whole or not at all; raises StoreError."""
    file = run_dir / name
    unfinished = file.with_name(f"{name}.{socket.gethostname()}-{os.getpid()}")
    try:
        unfinished.write_text(dumps(dict(document)) + "\n", "utf-8")
        unfinished.replace(file)
    except OSError as error:
        raise store_error(error, file) from error


def published(run_dir: Path) -> dict[str, Any] | None:
    """Return the last status of the run in ``run_dir``, None if none was published."""
    try:
        document: dict[str, Any] = loads((run_dir / STATUS_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return document


def driven_elsewhere(run_dir: Path) -> str | None:
    """Return the machine whose driver has the run's store open, None if it is this one or nobody's;
    a driver counts as gone when its last sign of life is old.
    """
    status = published(run_dir)
    if status is None or status.get("state") != State.RUNNING:
        return None
    host = str(status.get("driver_host"))
    silent_s = time.time() - float(status.get("updated_at") or 0.0)
    return None if host == socket.gethostname() or silent_s > REMOTE_SILENCE_S else host
