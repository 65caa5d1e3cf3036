"""The tasks of a dataset, converted from its rows.

Every malformed row is reported, all at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conf.cache import cache_root
from conf.sections.task import JsonlTaskConfig, TaskFileConfig
from runners.tasks import builtin
from runners.tasks.contract import Origin, Task
from runners.tasks.dataset_files import DatasetError, read_rows
from runners.tasks.graders.multi_swe import MultiSweError
from runners.tasks.harbor import suites
from runners.tasks.pinned_repositories import SourceError, find_source, read_head
from runners.tasks.pytest_mounts import pytest_mounts
from runners.tasks.schemas.detection import read_row
from runners.tasks.schemas.multi_swe import MultiSweRow
from runners.tasks.schemas.row import Row, RowContext, TestListRow
from runners.trajectory.printable import make_printable, shorten

SHOWN = 20
"""Faults in the message that stops a run; ``agentrl check`` shows all."""


def count_train_rows(family: TaskFileConfig, rows: int, path: str) -> int:
    """Return the number of rows that are trained; raises DatasetError."""
    held_out = family.held_out_tasks if isinstance(family, JsonlTaskConfig) else rows
    if held_out > rows:
        raise DatasetError(
            f"task.held_out_tasks={held_out} is more than the {rows} rows of {path}: lower it (its "
            "default is run.eval_tasks)"
        )
    return rows - held_out


def find_dataset(family: TaskFileConfig) -> str:
    """Return the dataset's file or hub name; the built-in set is made first."""
    if family.path is not None:
        return family.path
    return str(builtin.build(cache_root() / "tasks" / f"swebench-{builtin.VERSION}"))


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """Contents of a dataset: its tasks and its faults."""

    path: str
    tasks: tuple[Task, ...]
    """Tasks of the valid rows, in order."""
    faults: tuple[str, ...]
    """``file:line: reason``, one per malformed row."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Number of tasks by kind of grading."""
    repositories: dict[str, int] = field(default_factory=dict)
    """Number of tasks by repository."""


def read_dataset(config: TaskFileConfig, path: str) -> DatasetReport:
    """Read a whole dataset and collect all faults; raises DatasetError if it cannot be read."""
    tasks: list[Task] = []
    faults: list[str] = []
    seen: dict[str, str] = {}
    for location, row in _find_rows(path, config):
        try:
            if isinstance(row, str):
                raise ValueError(row)
            task = _read_task(row, config, Path(path).parent)
            if task.id in seen:
                raise ValueError(f"{task.id} is in {seen[task.id]} already")
            tasks.append(task)
            seen[task.id] = str(location)
        except ValidationError as error:
            faults.append(f"{location}: {_format_errors(error)}")
        except (ValueError, LookupError, TypeError, OSError, SourceError, MultiSweError) as error:
            faults.append(f"{location}: {' '.join(str(error).split())}")
    return DatasetReport(
        path=path,
        tasks=tuple(tasks),
        faults=tuple(faults),
        kinds=dict(Counter(task.grading.kind for task in tasks)),
        repositories=dict(Counter(task.kind for task in tasks)),
    )


def _find_rows(
    path: str, config: TaskFileConfig
) -> Iterator[tuple[object, Path | dict[str, Any] | str]]:
    """Yield the rows of a file, or the directories of a Harbor suite, each with its location, or
    its problem as text; raises DatasetError.
    """
    if not suites.is_suite(path):
        yield from read_rows(path)
        return
    if config.format != "auto" or config.repositories is not None:
        key = "task.repositories" if config.format == "auto" else f"task.format={config.format}"
        raise DatasetError(f"{key} is for rows, and task.path={path} has Harbor tasks: drop it")
    try:
        yield from suites.find_tasks(path)
    except (ValueError, OSError) as error:
        raise DatasetError(f"task.path={path} cannot be read: {error}") from error


def _read_task(row: Path | dict[str, Any], config: TaskFileConfig, beside: Path) -> Task:
    if isinstance(row, Path):
        return suites.read_task(row)
    if suites.is_packed(row):
        return suites.read_task(suites.unpack_row(row))
    return build_task(read_row(row, config.format), config, beside=beside)


def load_dataset(config: TaskFileConfig, path: str) -> list[Task]:
    """Return the tasks of a dataset that has no fault.

    Raises DatasetError, which names every fault, and PytestMissingError.
    """
    report = read_dataset(config, path)
    raise_for_faults(report, shown=SHOWN)
    pytest_mounts()  # raises now rather than in every sandbox
    train = count_train_rows(config, len(report.tasks), path)
    return [
        task if number < train else replace(task, split="held_out")
        for number, task in enumerate(report.tasks)
    ]


def raise_for_faults(report: DatasetReport, *, shown: int | None = None) -> None:
    """Raise DatasetError if there are malformed rows, which it names, or no row at all."""
    if report.faults:
        lines = list(report.faults[:shown])
        if more := len(report.faults) - len(lines):
            lines.append(f"… and {more} more: agentrl check names all of them")
        number = len(report.faults)
        rows = f"{number} malformed row{'s' if number > 1 else ''}"
        raise DatasetError(f"{report.path} has {rows}:\n" + "\n".join(lines))
    if not report.tasks:
        raise DatasetError(f"{report.path} has no rows")


def build_task(row: Row, config: TaskFileConfig, *, beside: Path) -> Task:
    """Return the task of a row; raises ValueError, OSError, SourceError and MultiSweError."""
    fail_to_pass, pass_to_pass = row.tests
    if isinstance(row, TestListRow | MultiSweRow) and not fail_to_pass:
        raise ValueError("FAIL_TO_PASS is empty: every patch would solve it")
    grading = row.grading(RowContext(beside, config.grader))
    image = row.image or (row.derived_image if not row.repo_path else "")
    source = _find_source(row, image, config, beside)
    commit = "" if source is None else row.base_commit or read_head(source)
    return Task(
        id=row.instance_id,
        split="train",
        repo=cache_root() / "repositories" / commit,
        base_commit=commit,
        problem_statement=row.statement,
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        protected=_inside(row.test_paths(), row.workdir),
        gold_patch=row.reference_patch,
        kind=row.repo or Path(source or image).stem,
        grading=grading,
        origin=Origin(source, commit, row.setup, row.workdir, image or None, row.test_setup),
        image=image or None,
        workdir=row.workdir if image else None,
        hidden_paths=row.hidden if image else (),
    )


def _find_source(row: Row, image: str, config: TaskFileConfig, beside: Path) -> str | None:
    """Return the source of a row's repository; None if only its image has it."""
    try:
        return find_source(row.repo_path, row.repo, beside, config.repositories)
    except SourceError:
        if not image or row.repo_path:
            raise
        return None


def _inside(paths: set[str], workdir: str) -> tuple[str, ...]:
    """Return the paths that are in the repository, relative to it."""
    inside = {path.removeprefix(f"{workdir}/").removeprefix("./") for path in paths}
    return tuple(sorted(p for p in inside if p and not p.startswith("/") and ".." not in p))


def _format_errors(error: ValidationError) -> str:
    """Return one fault per field, each with its fix, in one line."""
    found: dict[str, str] = {}
    for fault in error.errors(include_url=False):
        name = str(fault["loc"][0]) if fault["loc"] else "the row"
        found.setdefault(name, _explain_fault(name, fault))
    return "; ".join(found.values())


FORMS = {
    "instance_id": "up to 100 letters, digits, '.', '_' and '-', of which the first is no mark",
    "base_commit": "a commit's full hash (40 or 64 digits of 0-9a-f), without which the "
    "repository's HEAD is taken",
    **dict.fromkeys(
        ("FAIL_TO_PASS", "PASS_TO_PASS", "fail_to_pass", "pass_to_pass", "selected_test_files"),
        "a list of names, or the JSON text of one",
    ),
    "pre_commands": "a list of commands, or one text",
}
"""Forms of fields that are no plain text."""


def _explain_fault(name: str, fault: ErrorDetails) -> str:
    if fault["type"] == "missing":
        return f"{name} is missing: add it"
    if fault["type"] == "value_error" and name not in FORMS:
        return f"{name}: {fault['ctx']['error']}"
    given = make_printable(shorten(repr(fault["input"]), 60))
    return f"{name}={given} is not {FORMS.get(name, 'a text that is not empty')}"
