"""Cache of the tasks of a large dataset, so that its rows are validated once.

The cache of a dataset is one file of JSON lines: a header with all that the tasks depend on, the
tasks, and a digest of both. A file that is cut off or damaged, is of another content, or was
written by another version of this code is ignored, and the rows are read again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pydantic
from pydantic import TypeAdapter

from conf.cache import cache_root
from conf.sections.task import TaskFileConfig
from runners.processes.atomic_write import atomic_file
from runners.tasks.contract import HarborVerifier, Task
from runners.tasks.row_tasks import Surroundings, TaskBuilder

JUDGES = ("swebench", "multi-swe-bench")
"""Packages whose presence and version decide how rows are graded."""
SHOWN_EVERY = 1000
TASK = TypeAdapter(Task)
SURROUNDINGS = TypeAdapter(Surroundings)


class TaskCache:
    """The cache of one dataset under one configuration; a dataset that changes replaces it."""

    def __init__(self, config: TaskFileConfig, path: str, parts: list[Path]) -> None:
        grader = config.grader
        judge = grader if isinstance(grader, str) else grader.model_dump_json()
        choices = (config.format, str(config.repositories), judge)
        name = hashlib.sha256(json.dumps([str(Path(path).absolute()), *choices]).encode())
        self._file = cache_root() / "rows" / f"{name.hexdigest()[:32]}.jsonl"
        self._parts = parts
        self._found = self._look()

    def read(self, builder: TaskBuilder, show: Callable[[str], None]) -> list[Task] | None:
        """Return the tasks of the dataset as it is now; None if they are not cached."""
        try:
            with self._file.open("rb") as file:
                return self._read_tasks(file, builder, show)
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None  # absent, or damaged in some way

    def write(self, builder: TaskBuilder, tasks: list[Task]) -> None:
        """Store the tasks, if there is room; those of Harbor directories are not stored."""
        if any(isinstance(task.grading, HarborVerifier) for task in tasks):
            return
        key = self._make_key()
        if self._look() != self._found:
            return  # written to while it was read
        header = SURROUNDINGS.dump_json(builder.list_surroundings())
        total = hashlib.sha256()
        # Without a cache the rows are read again: it is no error that a disk is full, or that a row
        # has a text that is no Unicode.
        with suppress(OSError, ValueError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self._file) as partial, partial.open("wb") as file:
                for line in chain((key, header), map(TASK.dump_json, tasks)):
                    total.update(line)
                    file.write(line + b"\n")
                file.write(total.hexdigest().encode())

    def _read_tasks(
        self, file: BinaryIO, builder: TaskBuilder, show: Callable[[str], None]
    ) -> list[Task] | None:
        key, header = file.readline().rstrip(b"\n"), file.readline().rstrip(b"\n")
        if key != self._make_key() or not builder.is_unchanged(SURROUNDINGS.validate_json(header)):
            return None
        total = hashlib.sha256(key)
        total.update(header)
        tasks: list[Task] = []
        for line in file:
            text = line.rstrip(b"\n")
            if not line.endswith(b"\n"):  # the last one
                return tasks if text == total.hexdigest().encode() else None
            total.update(text)
            tasks.append(TASK.validate_json(text))
            if len(tasks) % SHOWN_EVERY == 0:
                show(f"{len(tasks):,} rows read from the cache")
        return None

    def _look(self) -> list[tuple[int, int]]:
        """Return size and time of the last change of each file."""
        return [(found.st_size, found.st_mtime_ns) for found in map(Path.stat, self._parts)]

    def _make_key(self) -> bytes:
        """Return the digest of the rows, and of the code that reads them."""
        digests = []
        for part in self._parts:
            with part.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        return json.dumps([*digests, _hash_code(), *map(_find_version, JUDGES)]).encode()


@lru_cache(maxsize=1)
def _hash_code() -> str:
    """Return a digest of this package's modules, and of what writes and reads tasks."""
    folder = Path(__file__).parent
    total = hashlib.sha256(f"{sys.version_info} {pydantic.VERSION}".encode())
    for file in sorted(folder.rglob("*.py")):
        total.update(file.read_bytes())
    return total.hexdigest()


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
