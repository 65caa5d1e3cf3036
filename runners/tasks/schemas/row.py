"""The base of all row schemas: common fields, the types of fields, and what a schema answers.

A schema turns the fields of one published format into what a task needs: image, base commit,
set-up, hidden tests, grading. It reads a row alone; repositories are found elsewhere.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from runners.tasks.contract import Grading
from runners.tasks.diffs import read_paths
from runners.trajectory.printable import shorten


def read_list(value: object) -> object:
    """Return a list that may be JSON text or, as in SWE-bench-Pro, the text of a Python literal."""
    if isinstance(value, str):
        value = _parse_literal(value)
    return tuple(value) if isinstance(value, list) else value


def _parse_literal(text: str) -> object:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue  # the last two: brackets in brackets
    raise ValueError("is neither a list nor the JSON text of one")


def read_object(value: object) -> object:
    """Return an object that may be JSON text, as after a conversion to Arrow."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError("is neither an object nor the JSON text of one") from error


def _read_commands(value: object) -> object:
    """Return commands: a list, or one text in which newlines may be escaped."""
    if isinstance(value, str):
        return (value.replace("\\n", "\n"),) if value.strip() else ()
    return tuple(value) if isinstance(value, list) else value


def _empty_if_none(value: object) -> object:
    return "" if value is None else value


def check_text(value: str) -> None:
    """Raise ValueError for a text that no program could be given."""
    if "\0" in value:
        raise ValueError("it has a NUL character: remove it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError("it has half of a character (a lone surrogate)") from error


def check_diff(diff: str) -> None:
    """Raise ValueError for a text that is no diff, and for a diff that leads out of the repository
    or into ``.git``.
    """
    if diff.strip() and not read_paths(diff).all:
        raise ValueError(
            "it is no diff in git's format: no line begins with 'diff --git' or '+++'; correct it, "
            "or leave it out"
        )
    if "../" not in diff and ".git" not in diff.lower():
        return
    for path in read_paths(diff).all:
        parts = {part.lower() for part in path.split("/")}
        if parts & {"..", ".git"}:
            raise ValueError(f"it changes {shorten(path, 80)}, which is not in the work tree")


def _check_workdir(value: str) -> str:
    if ".." in value.split("/"):
        raise ValueError("leads elsewhere")
    return value


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Diff = Annotated[str, StringConstraints(min_length=1)]
"""A diff as it is: white space at its end may be a line of context."""
NAMES_LIMIT = 250_000
"""Tests of a list; no published row comes near it."""
NameList = Annotated[tuple[Name, ...], BeforeValidator(read_list), Field(max_length=NAMES_LIMIT)]
Commands = Annotated[tuple[str, ...], BeforeValidator(_read_commands)]
Text = Annotated[str, BeforeValidator(_empty_if_none)]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Workdir = Annotated[
    str,
    StringConstraints(pattern=r"^/[A-Za-z0-9._+@/-]*[A-Za-z0-9_+@-]$"),
    AfterValidator(_check_workdir),
]
"""An absolute path that means the same in a shell, quoted or not."""
Image = Annotated[
    str,
    BeforeValidator(_empty_if_none),
    StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9._:/@+-]*)?$", max_length=512),
]
"""Name of an image or a template; never an option of a program."""
DIFFS = frozenset({"patch", "test_patch", "fix_patch", "f2p_patch"})
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""An id that can name sandboxes, files and directories; SWE-bench-Pro's have up to 110."""
Judge = Literal["auto", "official", "own"]
"""``task.grader``."""
FILE_LIMIT = 8 << 20
"""Bytes of a script or parser beside the rows."""


@dataclass(frozen=True, slots=True)
class RowContext:
    """Values besides the row on which its grading depends."""

    beside: Path
    """Folder of the row's file; paths in the row are relative to it."""
    judge: Judge = "auto"
    files: dict[Path, str] = field(default_factory=dict)
    """Files beside the rows that were read."""

    def read(self, path: str, name: str) -> str:
        """Return the text of a file in the folder; raises ValueError and OSError.

        ``name`` is the field that names it.
        """
        file, folder = (self.beside / path).resolve(), self.beside.resolve()
        if not file.is_relative_to(folder):
            # A dataset may come from anywhere, and what it names goes into a sandbox.
            raise ValueError(f"{name}={path} leads out of {folder}")
        if file not in self.files:
            if not file.is_file():  # a named pipe would never end
                raise ValueError(f"{name}={path}: there is no such file beside the rows")
            if file.stat().st_size > FILE_LIMIT:
                raise ValueError(f"{name}={path} is larger than {FILE_LIMIT >> 20} MiB")
            self.files[file] = file.read_text("utf-8")
        return self.files[file]

    @property
    def pytest_judge(self) -> Judge:
        """Judge of tests that pytest runs, of sets that the official package does not know: our
        own, unless the official one is asked for.
        """
        return "official" if self.judge == "official" else "own"


class Row(BaseModel):
    """Fields of every row; each schema is a subclass."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)

    schema_name: ClassVar[str]
    """Value of ``task.format``."""

    instance_id: Id
    problem_statement: Name
    base_commit: Commit | Literal[""] = ""
    """Empty: HEAD of the repository, or of the image."""
    repo: Text = ""
    """``owner/name``."""
    repo_path: Text = ""
    """Directory, bundle (relative to the row's file) or URL to fetch the repository from."""
    patch: Text = ""
    """The reference fix."""
    workdir: Workdir = "/testbed"
    """The repository's path in commands."""
    pre_commands: Commands = ()
    image: Image = ""
    """Image of its sandboxes, where sandboxes have images."""

    @field_validator("*")
    @classmethod
    def _check_texts(cls, value: object, info: ValidationInfo) -> object:
        texts = value if isinstance(value, tuple) else (value,)
        for text in texts:
            if isinstance(text, str):
                check_text(text)
                if info.field_name in DIFFS:
                    check_diff(text)
        return value

    @classmethod
    def convert(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields under our names; raises ValueError."""
        return fields

    @property
    def statement(self) -> str:
        """Return the text that the agent gets."""
        return self.problem_statement

    @property
    def derived_image(self) -> str:
        """Return the image by the set's rule for rows that name none; "" without a rule."""
        return ""

    @property
    def tests(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the fail-to-pass and pass-to-pass tests; empty where only an exit code decides."""
        return (), ()

    @property
    def reference_patch(self) -> str:
        """Return the diff that solves the task; "" if the row has none."""
        return self.patch

    @property
    def setup(self) -> tuple[str, ...]:
        """Return commands that make the base; their changes are no part of a patch."""
        return self.pre_commands

    @property
    def test_setup(self) -> tuple[str, ...]:
        """Return commands that put the hidden tests in place, run on the base; agents never see the
        result.
        """
        return ()

    @property
    def hidden(self) -> tuple[str, ...]:
        """Return the absolute paths of the image that agents must not see."""
        return ()

    def test_paths(self) -> set[str]:
        """Return the paths in the repository that decide the verdict."""
        return set()

    def grading(self, context: RowContext) -> Grading:
        """Return how its tests are run and read; raises ValueError and AgentrlError."""
        raise NotImplementedError


class PlainRow(Row):
    """A row without tests, for a set that a plug-in grades."""

    schema_name: ClassVar[str] = "plain"

    protected: NameList = ()
    """Paths in the repository that are restored before it is graded."""

    def test_paths(self) -> set[str]:
        """Return the row's own list; see the base."""
        return set(self.protected)


class TestListRow(Row):
    """A row whose named tests decide."""

    __test__ = False  # no pytest class

    fail_to_pass: NameList = Field(alias="FAIL_TO_PASS")
    pass_to_pass: NameList = Field(default=(), alias="PASS_TO_PASS")

    @property
    def tests(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the row's lists; see the base."""
        return self.fail_to_pass, self.pass_to_pass


def name_image(prefix: str, instance_id: str, separator: str = "_1776_") -> str:
    """Return an image named after an instance: lower case, ``__`` replaced, as registries demand.

    >>> name_image("swebench/sweb.eval.x86_64.", "Acme__Calc-7")
    'swebench/sweb.eval.x86_64.acme_1776_calc-7:latest'
    """
    return f"{prefix}{instance_id.replace('__', separator).lower()}:latest"
