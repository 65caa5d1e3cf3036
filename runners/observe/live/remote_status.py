"""Writes and reads the status of a run whose driver is on another machine than its reader.

A reader finds a whole document, the old one or the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from runners.observe.adviser.alarm import Alarm
from runners.observe.figures.training_counts import GroupCounts, TokenCounts
from runners.observe.live.status import Leak, PartlySolved, Status
from runners.records.store import find_remote_driver, raise_store_errors, read_status_file
from runners.records.text import dumps
from runners.system.processes import atomic_file


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the JSON file ``path``; raises StoreError."""
    with raise_store_errors(path), atomic_file(path) as partial:
        partial.write_text(dumps(dict(document)) + "\n", "utf-8")


def read_remote_status(run_dir: Path) -> Status | None:
    """Return the status of a run that another machine drives; None for any other run, whose store
    can be read here.
    """
    document = read_status_file(run_dir)
    if document is None or find_remote_driver(run_dir) is None:
        return None
    known = {field.name for field in fields(Status)}
    values = {name: value for name, value in document.items() if name in known}
    values["run_dir"] = str(run_dir)
    values["leaks"] = [Leak(**leak) for leak in document["leaks"]]
    values["partly_solved"] = [PartlySolved(**each) for each in document.get("partly_solved", [])]
    values["alarms"] = [Alarm(**each) for each in document.get("alarms", [])]
    values["groups"] = GroupCounts(**document.get("groups", {}))
    values["tokens"] = TokenCounts(**document.get("tokens", {}))
    return Status(**values)
