"""Writes the metrics of a run: ``metrics.jsonl``, one strict JSON object per step, and TensorBoard
events.

Both are derived from the store and hold each step once: a resumed run writes them anew.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runners.records.store import raise_store_errors
from runners.records.text import dumps
from runners.system.processes import atomic_file


def finite_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among metrics, which is what charts take."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


class MetricsWriter:
    """Writes steps' metrics, each of them to disk before it returns; raises StoreError."""

    def __init__(self, run_dir: Path, tensorboard: bool) -> None:
        self._path = run_dir / "metrics.jsonl"
        self._events = _Events(run_dir / "tensorboard") if tensorboard else None
        self._starts: dict[int, int] = {}
        """Offset of each step's line, in the order of the lines."""
        self._end = 0

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of one step; ``step`` is among them, NaN becomes null."""
        with raise_store_errors(self._path):
            with self._path.open("ab") as file:
                file.write(_line(metrics))
            if self._events:
                self._events.add(metrics)

    def rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace all steps that were written before by ``rows``."""
        rows, self._starts = list(rows), {}
        with raise_store_errors(self._path):
            with atomic_file(self._path) as partial:
                partial.write_bytes(self._place(rows, 0))
            if self._events:
                self._events.restart()
                for metrics in rows:
                    self._events.add(metrics)

    def replace_tail(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Replace the lines from the first step of ``rows`` on, in place: a reader sees whole lines
        of before, then those of now. Returns False, and does nothing, if the file is not as
        ``rewrite`` and this method left it; there must be no TensorBoard.
        """
        assert self._events is None, "events cannot be taken back one by one"
        with raise_store_errors(self._path):
            if not self._path.exists() or self._path.stat().st_size != self._end:
                return False
            if rows:
                first = int(rows[0]["step"])
                start = min(
                    (at for step, at in self._starts.items() if step >= first), default=self._end
                )
                self._starts = {step: at for step, at in self._starts.items() if step < first}
                text = self._place(rows, start)
                with self._path.open("r+b") as file:
                    file.truncate(start)
                    file.seek(start)
                    file.write(text)
        return True

    def _place(self, rows: Sequence[Mapping[str, Any]], start: int) -> bytes:
        """Return the lines, and note where they begin."""
        lines = [_line(row) for row in rows]
        self._end = start
        for row, line in zip(rows, lines, strict=True):
            self._starts[int(row["step"])] = self._end
            self._end += len(line)
        return b"".join(lines)

    def close(self) -> None:
        """Close the event file."""
        if self._events:
            self._events.close()


def _line(metrics: Mapping[str, Any]) -> bytes:
    return dumps(dict(metrics)).encode() + b"\n"


class _Events:
    """One TensorBoard event file, flushed per step.

    It uses tensorboard's record format and protocol buffers directly: tensorboard's own writer
    imports tensorflow where that is installed, and has a queue that ``kill -9`` would lose.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: Any = None

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Write every finite number of a step."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        scalars = finite_numbers(metrics)
        scalars.pop("step", None)
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._write(step=int(metrics["step"]), summary=Summary(value=values))

    def restart(self) -> None:
        """Drop all steps; a TensorBoard that is open drops them too (``SessionLog.START``)."""
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]

        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._write(step=0, session_log=SessionLog(status=SessionLog.START))

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()
            self._file = None

    def _write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import (  # type: ignore[import-untyped]
            RecordWriter,
        )

        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
            self._file = RecordWriter((self._folder / name).open("xb"))
            self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._append(Event(wall_time=time.time(), **content))
        self._file.flush()

    def _append(self, event: Any) -> None:
        self._file.write(event.SerializeToString())
