"""Read the status that a run's driver on another machine has published."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from runners.observe.status import Leak, Status
from runners.store.published import driven_elsewhere, published


def read_published_status(run_dir: Path) -> Status | None:
    """Return the published status of a run that another machine drives, whose store cannot be read
    here; None for any other run.
    """
    document = published(run_dir)
    if document is None or driven_elsewhere(run_dir) is None:
        return None
    known = {field.name for field in fields(Status)}
    values = {name: value for name, value in document.items() if name in known}
    values["run_dir"] = str(run_dir)
    values["leaks"] = [Leak(**leak) for leak in document["leaks"]]
    return Status(**values)
