"""Keep the digests of a run's task files, and refuse to continue the run with another content.

Earlier and later rollouts of one run would be at different tasks, and count as one experiment.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from conf.errors import ExitCode
from conf.schema import Config
from runners.store.run_store import RunStore
from runners.store.store_error import StoreError
from runners.tasks.harbor import suites
from runners.tasks.task_sets import list_sets

EVENT = "dataset"
"""Kind of the events that have section, path and SHA-256 (hex) of a task file."""


def note_datasets(store: RunStore, config: Config) -> None:
    """Keep the digests of a new run's task files; other datasets have none."""
    for each in list_sets(config):
        digest = _hash_dataset(each.config.path)
        if digest is not None:
            data = {"key": each.key, "path": each.config.path, "sha256": digest}
            store.event(EVENT, data)


def check_datasets(store: RunStore, config: Config) -> None:
    """Raise StoreError (exit code 5) if a task file is not what it was when the run began."""
    paths = {each.key: each.config.path for each in list_sets(config)}
    for noted in store.events(EVENT):
        key = noted.data.get("key", "task")  # runs of earlier versions have one file
        if noted.data["sha256"] != _hash_dataset(paths.get(key)):
            raise StoreError(
                f"{key}.path={noted.data['path']} has changed or is missing since the run in "
                f"{store.run_dir} began: restore it, since rollouts would be at other tasks, or "
                "start a new run",
                ExitCode.DATA_REFUSED,
            )


def _hash_dataset(path: str | None) -> str | None:
    if path is not None and suites.is_suite(path):
        return suites.hash_suite(path)
    if path is None or not Path(path).is_file():
        return None
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
