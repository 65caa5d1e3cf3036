"""Open the store of a job, of which there is one driver at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from conf.schema import Config
from runners.records.store import REMOTE_SILENCE_S, STORE_FILE, RunStore, find_remote_driver
from runners.services.driver import check_datasets, note_datasets

POLL_S = 2.0

_log = logging.getLogger(__name__)


async def open_store(config: Config, run_dir: Path) -> RunStore:
    """Open the run's store, once an earlier driver on another machine has gone silent.

    Raises StoreError if the tasks have changed since the job began.
    """
    until = time.monotonic() + REMOTE_SILENCE_S
    while (host := find_remote_driver(run_dir)) is not None and time.monotonic() < until:
        _log.warning("waiting for the run's driver on %s to be gone", host)
        await asyncio.sleep(POLL_S)
    is_new = not (run_dir / STORE_FILE).is_file()
    content = config.model_dump(mode="json")
    store = RunStore.create(run_dir, content) if is_new else RunStore.open(run_dir)
    try:
        (note_datasets if is_new else check_datasets)(store, config)
    except BaseException:
        store.close()
        raise
    return store
