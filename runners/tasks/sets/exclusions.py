"""Set tasks of a dataset aside by name: those that a calibration found unfit, or a list names.

A file of exclusions is a ``calibration.json``, or a text of ids and globs, one a line, each with
its reason after ``#``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from conf.suggestions import suggest
from runners.tasks.contract import Task
from runners.tasks.section_keys import name_key
from runners.tasks.sets.dataset_files import DatasetError

KNOWN_BAD = Path(__file__).with_name("known_bad.txt")
LIMIT = 64 << 20
"""Bytes of a file."""


def set_aside(
    tasks: Sequence[Task], exclude: Path | Literal["known_bad"]
) -> tuple[list[Task], dict[str, str]]:
    """Return the tasks that are left, and id → reason of the others.

    Raises DatasetError if the file cannot be read, names a task that is not there, or names all.
    """
    ids = {task.id for task in tasks}
    file = find_file(exclude)
    may_be_missing = file == KNOWN_BAD
    aside: dict[str, str] = {}
    unknown: list[str] = []
    for name, reason in _read(file).items():
        globs = any(character in name for character in "*?[")
        found = [each for each in ids if fnmatchcase(each, name)] if globs else [name]
        if not found or not ids.issuperset(found):
            if may_be_missing:
                continue
            unknown.append(f"{name}{suggest(name, ids, ' (did you mean {}?)')}")
        for each in found:
            aside.setdefault(each, reason)
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise DatasetError(
            f"{name_key('exclude')}={file} names tasks that are not there: "
            f"{', '.join(unknown[:5])}{more}: remove them, or make a calibration of this set"
        )
    left = [task for task in tasks if task.id not in aside]
    if tasks and not left:
        raise DatasetError(
            f"{name_key('exclude')}={file} excludes all {len(tasks)} tasks: name fewer"
        )
    return left, {task.id: aside[task.id] for task in tasks if task.id in aside}


def find_file(exclude: Path | Literal["known_bad"]) -> Path:
    """Return the file of ``task.exclude``."""
    return exclude if isinstance(exclude, Path) else KNOWN_BAD


def _read(file: Path) -> dict[str, str]:
    """Return id or glob → reason."""
    try:
        if not file.is_file() or file.stat().st_size > LIMIT:
            raise DatasetError(
                f"{name_key('exclude')}={file} is no file of at most {LIMIT >> 20} MiB"
            )
        text = file.read_text("utf-8")
        if file.suffix == ".json":
            names = json.loads(text)["set_aside"]
            return {str(name): str(reason) for name, reason in names.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetError(
            f"{name_key('exclude')}={file} is neither a calibration.json nor a text of ids: "
            f"{error!r:.80}"
        ) from error
    lines = (line.partition("#") for line in text.splitlines())
    entries = ((name.strip(), reason.strip()) for name, _, reason in lines)
    return {name: reason or f"named in {file.name}" for name, reason in entries if name}
