"""The suite for dataset readers: valid rows, the same ones again, one by one."""

from __future__ import annotations

import inspect
import json
import os
import queue
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentrl.testing.plugin_target import PluginTests
from conf.compose import compose
from conf.sections.task import JsonlTaskConfig
from runners.tasks.sets import DatasetReader, read_dataset

PIPE_BYTES = 60_000
"""A pipe takes 64 KiB without a reader."""


class ReaderConformance(PluginTests):
    """Tests of a reader, on a dataset of its author."""

    path: ClassVar[str] = ""
    """The dataset; a relative path is below the directory of the test."""
    grader: ClassVar[str] = ""
    """Target of the grader, where rows are in no known schema."""
    rows: ClassVar[int | None] = None
    """Expected number of rows."""
    streams: ClassVar[bool] = True
    """False: the form has to be read whole before there is a first row (one JSON array)."""
    first_row_s: ClassVar[float] = 10.0
    """Time to the first row of a pipe that does not end."""

    @property
    def dataset(self) -> Path:
        """The dataset's path."""
        if not self.path:
            raise ValueError(f"{type(self).__name__}.path has to name a dataset")
        return Path(inspect.getfile(type(self))).parent / self.path

    def test_every_row_is_a_valid_task(self) -> None:
        config = compose(["task=jsonl", f"task.path={self.dataset}"]).task
        assert isinstance(config, JsonlTaskConfig)
        plugins = {"format": self.configure("readers")}
        if self.grader:
            grader = type("Named", (type(self),), {"target": self.grader, "options": {}})
            plugins["grader"] = grader().configure("graders")
        report = read_dataset(config.model_copy(update=plugins), str(self.dataset))
        assert not report.faults, "\n".join(report.faults)
        assert report.tasks, "the reader yields no row"
        assert self.rows is None or len(report.tasks) == self.rows

    def test_ids_are_unique(self) -> None:
        counted = Counter(str(row.get("instance_id")) for row in self._read())
        twice = [name for name, count in counted.items() if count > 1]
        assert not twice, f"several rows have the same instance_id: {twice[:10]}"

    def test_a_second_reading_yields_the_same_rows(self) -> None:
        first, second = list(self._read()), list(self._read())
        assert first == second, "the same path has to yield the same rows in the same order"
        for row in first:
            assert json.loads(json.dumps(row)) == row, "a row has to consist of JSON values"

    def test_rows_come_one_by_one(self, tmp_path: Path) -> None:
        if not self.streams or not self.dataset.is_file():
            pytest.skip("it does not say that it streams, or reads a directory")
        pipe = tmp_path / self.dataset.name
        os.mkfifo(pipe)
        found: queue.Queue[object] = queue.Queue()

        def read() -> None:
            try:
                found.put(next(iter(self._read(pipe))))
            except BaseException as error:
                found.put(error)

        # Open for both, so that neither side waits for the other; the end of the file never comes.
        both = os.open(pipe, os.O_RDWR)
        try:
            os.write(both, self.dataset.read_bytes()[:PIPE_BYTES])
            threading.Thread(target=read, daemon=True).start()
            row = found.get(timeout=self.first_row_s)
        except queue.Empty:
            pytest.fail(
                "the reader wants the whole file before it yields a row: yield each as it is read, "
                "or say streams = False if the form does not allow it"
            )
        finally:
            os.close(both)
        assert isinstance(row, Mapping), f"the first row of a pipe: {row!r}"

    def _read(self, path: Path | None = None) -> Iterator[Mapping[str, Any]]:
        reader: DatasetReader = self.load(DatasetReader, "readers", "task.format")
        yield from reader(path or self.dataset)
