"""Write the rows of a dataset as JSONL that ``task=jsonl`` reads and grades in the same way.

A written row has its fields without the layers of trainers, names its schema (``task_format``),
and finds its repository from where it is written. The files beside the rows that it needs (scripts,
parsers) are copied.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from conf.errors import AgentrlError, ConfigError, ExitCode
from conf.sections.plugin import PluginConfig
from conf.sections.task import JsonlTaskConfig
from runners.system.processes import atomic_file
from runners.tasks.contract import Task
from runners.tasks.harbor import suites
from runners.tasks.schemas.detection import AUTO, read_row
from runners.tasks.schemas.layers import flatten, list_layers
from runners.tasks.schemas.row import FORMAT, Row, RowContext
from runners.tasks.sets.custom_reader import read_with_plugin
from runners.tasks.sets.dataset_files import DatasetError, read_rows

LEFT_OUT = ("prompt", "sandbox")
"""Fields besides layers of which ``flatten`` has taken what counts."""


class ConversionError(AgentrlError):
    """A dataset that cannot be written as rows; the text says why."""

    exit_code = ExitCode.DATA_REFUSED


def convert_rows(config: JsonlTaskConfig, tasks: Iterable[Task], out: Path) -> tuple[str, ...]:
    """Write the rows of tasks of a dataset; return their ids, in the dataset's order.

    Raises ConfigError, ConversionError and DatasetError; ``out`` is complete or absent.
    """
    if out.suffix != ".jsonl":
        raise ConfigError(f"{out} is no .jsonl file: rows are written as JSONL")
    if out.exists():
        raise ConfigError(f"{out} exists already: choose another file")
    if suites.is_suite(config.path):
        raise ConversionError(
            f"{config.path} has Harbor directories, which are no rows: copy the directories"
        )
    if isinstance(config.grader, PluginConfig):
        raise ConversionError(
            f"task.grader={config.grader.target} grades these rows, which have no tests of their "
            "own to be written: leave task.grader out, or train on them as they are"
        )
    context = RowContext(Path(config.path).parent, config.grader)
    try:
        return _write_rows(config, tasks, context, out)
    except OSError as error:
        raise ConversionError(f"{out} cannot be written: {error}") from error


def _write_rows(
    config: JsonlTaskConfig, tasks: Iterable[Task], context: RowContext, out: Path
) -> tuple[str, ...]:
    out.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with atomic_file(out) as partial:
        with partial.open("w", encoding="utf-8") as file:
            for name, row in _convert(config, {task.id: task for task in tasks}, context, out):
                # Parquet has dates, and other values that JSON has not.
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
                written.append(name)
        _copy_files(context, out.parent)
    return tuple(written)


def _convert(
    config: JsonlTaskConfig, tasks: dict[str, Task], context: RowContext, out: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the new rows of tasks, which it takes out of ``tasks``, by id."""
    plugin = config.format if isinstance(config.format, PluginConfig) else None
    schema = config.format if isinstance(config.format, str) else AUTO
    rows = read_with_plugin(plugin, Path(config.path)) if plugin else read_rows(config.path)
    for _, fields in rows:
        if isinstance(fields, str) or suites.is_packed(fields):
            continue
        try:
            row = read_row(fields, schema)
        except (ValueError, LookupError, TypeError):
            continue  # a fault, which the reader of the dataset has named
        if (task := tasks.pop(row.instance_id, None)) is not None:
            row.grading(context)  # reads the files beside the rows
            yield task.id, _make_row(fields, row, task, out.parent)
    if tasks:
        names = ", ".join(sorted(tasks)[:5])
        raise ConversionError(
            f"{len(tasks)} tasks are no rows of their own ({names}): packed Harbor directories are "
            "not written; choose others with --match or --schema"
        )


def _make_row(fields: Mapping[str, Any], row: Row, task: Task, beside: Path) -> dict[str, Any]:
    left_out = {*list_layers(fields), *LEFT_OUT}
    kept = {
        name: value
        for name, value in flatten(fields).items()
        if name not in left_out and value != "" and value == value  # NaN of Parquet is no JSON
    }
    made = {FORMAT: row.row_schema.name, "instance_id": task.id, **kept}
    source = task.origin.source if task.origin is not None else None
    if source is not None:
        local = Path(source).exists()
        made["repo_path"] = os.path.relpath(source, beside.resolve()) if local else source
        if task.image:  # the set's rule is for rows without a repository of their own
            made["image"] = task.image
    return made


def _copy_files(context: RowContext, folder: Path) -> None:
    """Copy the files that rows needed to the same places beside the new rows."""
    beside = context.beside.resolve()
    for path, text in context.files.items():
        target = folder / path.relative_to(beside)
        if target.exists():
            if target.read_text("utf-8") != text:
                raise DatasetError(f"{target} is another file than {path}: choose another folder")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as partial:
            partial.write_text(text, "utf-8")
