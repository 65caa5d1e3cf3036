"""Make tasks of a dataset's rows, and put a row's faults into words.

A row is read alone; what many rows share (a repository's place and HEAD, a file beside the rows) is
found once.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conf.cache import cache_root
from conf.sections.plugin import PluginConfig
from conf.sections.task import TaskFileConfig
from runners.records.text import make_printable, shorten
from runners.tasks.contract import CustomGrading, Grading, Origin, Task
from runners.tasks.repositories.pinned_repositories import (
    SourceError,
    find_source,
    list_missing_commits,
    read_head,
)
from runners.tasks.schemas.detection import AUTO, read_row
from runners.tasks.schemas.row import NAMES_LIMIT, Row, RowContext


class TaskBuilder:
    """Makes the tasks of one dataset's rows."""

    def __init__(self, config: TaskFileConfig, beside: Path) -> None:
        self._config = config
        self._plugin = config.grader if isinstance(config.grader, PluginConfig) else None
        self._schema = config.format if isinstance(config.format, str) else AUTO
        judge = config.grader if isinstance(config.grader, str) else "auto"
        self._context = RowContext(beside, judge)
        self._pristine = cache_root() / "repositories"
        self._sources: dict[tuple[str, str], str | SourceError] = {}
        self._heads: dict[str, str] = {}

    def build(self, fields: Mapping[str, Any]) -> Task:
        """Return the task of a row; raises ValueError, OSError, SourceError and MultiSweError."""
        row = read_row(fields, self._schema, needs_grading=self._plugin is None)
        schema = row.row_schema
        fail_to_pass, pass_to_pass = schema.tests(row)
        if self._plugin is not None:
            grading: Grading = CustomGrading(self._plugin.model_dump_json(), _write_json(fields))
        elif schema.needs_tests and not fail_to_pass:
            raise ValueError("FAIL_TO_PASS is empty: every patch would solve it")
        else:
            grading = row.grading(self._context)
        image = row.image or (schema.image(row) if not row.repo_path else "")
        source = self._find_source(row, image)
        commit = "" if source is None else row.base_commit or self._read_head(source)
        return Task(
            id=row.instance_id,
            split="train",
            repo=self._pristine / commit,
            base_commit=commit,
            problem_statement=schema.statement(row),
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
            protected=_inside({*schema.test_paths(row), *row.protected}, row.workdir),
            gold_patch=schema.reference_patch(row),
            kind=row.repo or Path(source or image).stem,
            grading=grading,
            origin=Origin(
                source,
                commit,
                schema.setup(row),
                row.workdir,
                image or None,
                schema.test_setup(row),
            ),
            image=image or None,
            workdir=row.workdir if image else None,
            hidden_paths=schema.hidden(row) if image else (),
            asks_for_tests=row.asks_for_tests,
            schema=schema.name,
        )

    def find_missing_commits(self, tasks: Iterable[Task]) -> Iterator[str]:
        """Yield a fault for each task whose base commit its repository on this disk does not have.

        git is asked once per repository; one that it cannot read is found later.
        """
        by_source: dict[str, list[Task]] = {}
        for task in tasks:
            source = task.origin.source if task.origin else None
            if source and Path(source).is_dir():
                by_source.setdefault(source, []).append(task)
        for source, found in by_source.items():
            missing = list_missing_commits(source, {task.base_commit for task in found})
            for task in found:
                if task.base_commit in missing:
                    yield (
                        f"{task.id}: {source} has no commit {task.base_commit}: correct its "
                        "base_commit, or fetch the commit there"
                    )

    def _find_source(self, row: Row, image: str) -> str | None:
        """Return the source of a row's repository; None if only its image has it."""
        found = self._ask_source(row.repo_path, row.repo)
        if isinstance(found, str):
            return found
        if not image or row.repo_path:
            raise found
        return None

    def _ask_source(self, repo_path: str, repo: str) -> str | SourceError:
        key = (repo_path, repo)
        if key not in self._sources:
            beside, repositories = self._context.beside, self._config.repositories
            try:
                self._sources[key] = find_source(repo_path, repo, beside, repositories)
            except SourceError as error:
                self._sources[key] = error
        return self._sources[key]

    def _read_head(self, source: str) -> str:
        if source not in self._heads:
            self._heads[source] = read_head(source)
        return self._heads[source]


def _write_json(fields: Mapping[str, Any]) -> str:
    """Return a row as JSON text, the same for the same row; raises ValueError."""
    try:
        return json.dumps(fields, sort_keys=True, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"it has a value that is no JSON: {error}") from error


def _inside(paths: set[str], workdir: str) -> tuple[str, ...]:
    """Return the paths that are in the work tree, relative to it."""
    inside = {path.removeprefix(f"{workdir}/").removeprefix("./") for path in paths}
    return tuple(sorted(p for p in inside if p and not {"", "..", ".git"} & {*p.split("/")}))


def format_errors(error: ValidationError) -> str:
    """Return one fault per field, each with its fix, in one line."""
    found: dict[str, str] = {}
    for fault in error.errors(include_url=False):
        name = str(fault["loc"][0]) if fault["loc"] else "the row"
        found.setdefault(name, _explain_fault(name, fault))
    return "; ".join(found.values())


FORMS = {
    "instance_id": "up to 128 letters, digits, '.', '_' and '-', of which the first is no mark",
    "base_commit": "a commit's full hash: 40 or 64 digits of 0-9a-f, as `git rev-parse` prints it",
    **dict.fromkeys(
        ("FAIL_TO_PASS", "PASS_TO_PASS", "fail_to_pass", "pass_to_pass", "selected_test_files"),
        "a list of names, or the JSON text of one",
    ),
    "pre_commands": "a list of commands, or one text",
    "workdir": "an absolute path of letters, digits and ._+@- without '..', below the root",
    "image": "the name of an image: letters, digits and ._:/@+-, a letter or digit first",
}
"""Forms of fields that are no plain text."""
SHORT = reprlib.Repr()
"""Shows values of any size and depth."""
SHORT.maxlevel, SHORT.maxstring, SHORT.maxother = 3, 100, 100


def _explain_fault(name: str, fault: ErrorDetails) -> str:
    if fault["type"] == "missing":
        form = f", {FORMS[name]}" if name in FORMS else ""
        return f"{name} is missing: add it{form}"
    if fault["type"] == "value_error" and name not in FORMS:
        return f"{name}: {fault['ctx']['error']}"
    if fault["type"] == "too_long":
        return f"{name} has more than {NAMES_LIMIT:,} entries"
    given = make_printable(shorten(SHORT.repr(fault["input"]), 60))
    return f"{name}={given} is not {FORMS.get(name, 'a text that is not empty')}"
