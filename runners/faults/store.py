"""A disk that fills up, stalls or fails under what the driver writes.

Writes block the event loop, so a ``delay`` here stalls the whole driver, as a slow disk does.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from conf.errors import ExitCode
from conf.fault_table import Boundary
from runners.faults.inject import raised
from runners.faults.injection import Injection
from runners.faults.plan import Fault
from runners.observe.metrics import MetricsWriter
from runners.store.run_store import RunStore
from runners.store.store_error import StoreError, store_error
from runners.trajectory.record import RolloutRecord


class FaultyStore(RunStore):
    """A second connection to a run's store, for the records of attempts: their writing before the
    grading (``store``), and at the end of the attempt that counts (``deliver``).
    """

    _injection: Injection

    @classmethod
    def over(cls, real: RunStore, injection: Injection) -> Self:
        """Open the store of a run once more."""
        store = cls.open(real.run_dir)
        store._injection = injection
        return store

    def put_rollout(self, record: RolloutRecord) -> None:
        """Write one attempt, unless the disk fails first."""
        where: Boundary = "deliver" if record.counts else "store"
        _meet(self._injection, where, record.session_id, self.run_dir)
        super().put_rollout(record)


class FaultyMetrics(MetricsWriter):
    """A writer of metrics around a real one, which its owner closes; a step is a rollout's id."""

    def __init__(self, real: MetricsWriter, injection: Injection, run_dir: Path) -> None:
        self._real = real
        self._injection = injection
        self._run_dir = run_dir

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of a step, unless the disk fails first."""
        _meet(self._injection, "dump", f"step-{metrics['step']:06d}", self._run_dir)
        self._real.write(metrics)

    def rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace everything, unless the disk fails first."""
        _meet(self._injection, "dump", "metrics", self._run_dir)
        self._real.rewrite(rows)

    def close(self) -> None:
        """Leave the files to the real writer's owner."""


def _meet(injection: Injection, where: Boundary, name: str, path: Path) -> None:
    """Let the fault of a write happen, if there is one."""
    fault = injection.draw(where, name)
    if fault is None:
        return

    def error(fault: Fault) -> StoreError:
        if fault.what == "disk_full":
            return store_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path)
        return StoreError(f"the disk failed: {fault}", ExitCode.SERVICE_GONE)

    failure = raised(fault, error)
    if failure is not None:
        raise failure
    time.sleep(fault.seconds)
