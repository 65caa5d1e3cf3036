"""A row of any published set, and what a schema says about it.

``Row`` has the fields of all schemas with their types, ``Schema`` describes one of them: which
fields it reads, and how they make what a task needs (image, set-up, hidden tests, grading). A row
is read alone; repositories are found elsewhere.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
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
    create_model,
    field_validator,
)

from conf.suggestions import suggest
from runners.records.text import shorten
from runners.tasks.contract import Grading
from runners.tasks.patches.diffs import complete_diff, read_paths
from runners.tasks.schemas.layers import IMAGES, LAYERS


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


def _read_lines(value: object) -> object:
    if isinstance(value, str):
        return (value,) if value.strip() else ()
    return tuple(value) if isinstance(value, list) else value


def _read_test_names(value: object) -> object:
    """Return names of tests: keys of an object, or, in Parquet, the column ``name``."""
    found = read_object(value)
    if isinstance(found, Mapping):
        names = found.get("name") if isinstance(found.get("name"), list) else found
        return tuple(names or ())
    return found


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
TestName = Annotated[str, StringConstraints(pattern=r"\S")]
"""A test's name as it is: white space around it may be part of what a parser prints."""
TestList = Annotated[
    tuple[TestName, ...], BeforeValidator(read_list), Field(max_length=NAMES_LIMIT)
]
Commands = Annotated[tuple[str, ...], BeforeValidator(_read_commands)]
CommandLines = Annotated[tuple[str, ...], BeforeValidator(_read_lines)]
TestNames = Annotated[tuple[TestName, ...], BeforeValidator(_read_test_names)]
Statuses = Annotated[dict[TestName, Name], BeforeValidator(read_object)]
Text = Annotated[str, BeforeValidator(_empty_if_none)]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Workdir = Annotated[
    str,
    StringConstraints(pattern=r"^/[A-Za-z0-9._+@/-]*[A-Za-z0-9_+@-]$"),
    AfterValidator(_check_workdir),
]
"""An absolute path that means the same in a shell, quoted or not."""
_IMAGE = r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$"
Image = Annotated[
    str,
    BeforeValidator(_empty_if_none),
    StringConstraints(pattern=rf"^$|{_IMAGE}", max_length=512),
]
"""Name of an image or a template; never an option of a program."""
NamedImage = Annotated[
    str, StringConstraints(strip_whitespace=True, pattern=_IMAGE, max_length=512)
]
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


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class InstallConfig(_Part):
    """``install_config`` of SWE-rebench: how the tests of a row are run and read."""

    test_cmd: CommandLines
    log_parser: Name = "parse_log_pytest"
    install: CommandLines = ()


class Base(_Part):
    """``base`` of Multi-SWE: the commit of the pull request's target."""

    sha: Commit


Install = Annotated[InstallConfig, BeforeValidator(read_object)]
Target = Annotated[Base, BeforeValidator(read_object)]


class Row(BaseModel):
    """The fields of every schema; a row has those that its schema names, the others are empty."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)

    row_schema: ClassVar[Schema]

    instance_id: Id
    problem_statement: Name
    base_commit: Commit | Literal[""] = ""
    """Empty: HEAD of the repository, or of the image."""
    repo: Text = ""
    """``owner/name``."""
    repo_path: Text = ""
    """Directory, bundle (relative to the row's file) or URL to fetch the repository from."""
    patch: Text = ""
    """The reference fix; of SWE-smith the bug."""
    workdir: Workdir = "/testbed"
    """The repository's path in commands."""
    pre_commands: Commands = ()
    image: Image = ""
    """Image of its sandboxes, where sandboxes have images."""

    # Named tests, and the patch that brings them.
    fail_to_pass: TestList = Field(default=(), alias="FAIL_TO_PASS")
    pass_to_pass: TestList = Field(default=(), alias="PASS_TO_PASS")
    test_patch: Text = ""
    version: Text = ""
    eval_script: Text = ""
    log_parser: Text = ""
    eval_type: Text = ""
    # Commands that run them.
    eval_cmd: Name = ""
    test_cmd: Name = ""
    rebuild_cmds: CommandLines = ()
    test_cmds: CommandLines = ()
    print_cmds: CommandLines = ()
    language: Name = ""
    install_config: Install | None = None
    f2p_patch: Text = ""
    f2p_script: Text = ""
    # SWE-bench-Pro; a path is a file on this machine, relative to the row's file.
    before_repo_set_cmd: Commands = ()
    selected_test_files: NameList = ()
    run_script: Text = ""
    run_script_path: Text = ""
    parser_script: Text = ""
    parser_script_path: Text = ""
    requirements: Text = ""
    interface: Text = ""
    dockerhub_tag: Text = ""
    # R2E-Gym
    commit_hash: Commit = ""
    expected: Statuses = Field(default={}, alias="expected_output_json")
    parsed_commit_content: Text = ""
    # Multi-SWE
    org: Name = ""
    number: int = 0
    fix_patch: Text = ""
    base: Target | None = None
    tag: Text = ""
    number_interval: Text = ""
    f2p_tests: TestNames = ()
    s2p_tests: TestNames = ()
    n2p_tests: TestNames = ()
    p2p_tests: TestNames = ()
    protected: NameList = ()
    """Paths in the repository that are restored before it is graded, beside those that its schema
    finds.
    """
    asks_for_tests: bool = False
    """The agent is to write tests: those of ``test_patch`` decide."""

    @field_validator("*")
    @classmethod
    def _check_texts(cls, value: object, info: ValidationInfo) -> object:
        texts = value if isinstance(value, tuple) else (value,)
        for text in texts:
            if isinstance(text, str):
                check_text(text)
                if info.field_name in DIFFS:
                    check_diff(text)
                    return complete_diff(text)
        return value

    def grading(self, context: RowContext) -> Grading:
        """Return how its tests are run and read; raises ValueError and AgentrlError."""
        return self.row_schema.grading(self, context)


FORMAT = "task_format"
"""Field in which a row names its own schema, as ``agentrl tasks convert`` writes it."""
OUTSIDE = frozenset({FORMAT, "label", "prompt", "sandbox", *IMAGES})
"""Fields that are read before a row has a schema."""
COMMON = (
    *("instance_id", "problem_statement", "base_commit", "repo", "repo_path", "patch", "workdir"),
    *("pre_commands", "image", "protected"),
)
"""Fields of every schema."""
Fields = Mapping[str, Any]


def _no_grading(row: Row, context: RowContext) -> Grading:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Schema:
    """The meaning of the fields of one published set; a function that is left out is the rule."""

    name: str
    """Value of ``task.format``."""
    required: Mapping[str, Any]
    """Types of the fields that a row must have."""
    optional: tuple[str, ...] = ()
    """Further fields that it reads, beside ``COMMON``."""
    mark: Callable[[Fields], bool] = lambda _: False
    """Tells a row by fields that only this schema has."""
    needs_tests: bool = True
    """It names fail-to-pass tests."""
    convert: Callable[[Fields], Fields] = lambda fields: fields
    """Returns the fields under our names; raises ValueError."""
    grading: Callable[[Row, RowContext], Grading] = _no_grading
    """Returns how its tests are run and read; raises ValueError and AgentrlError."""
    image: Callable[[Row], str] = lambda _: ""
    """Returns the image by the set's rule for rows that name none; "" without a rule."""
    statement: Callable[[Row], str] = lambda row: row.problem_statement
    """Returns the text that the agent gets."""
    tests: Callable[[Row], tuple[tuple[str, ...], tuple[str, ...]]] = lambda row: (
        row.fail_to_pass,
        row.pass_to_pass,
    )
    """Returns the fail-to-pass and pass-to-pass tests; empty where only an exit code decides."""
    test_paths: Callable[[Row], Iterable[str]] = lambda row: read_paths(row.test_patch).all
    """Returns the paths in the repository that decide the verdict."""
    reference_patch: Callable[[Row], str] = lambda row: row.patch
    """Returns the diff that solves the task; "" if the row has none."""
    setup: Callable[[Row], tuple[str, ...]] = lambda row: row.pre_commands
    """Returns commands that make the base; their changes are no part of a patch."""
    test_setup: Callable[[Row], tuple[str, ...]] = lambda _: ()
    """Returns commands that put the hidden tests in place, run on the base; agents never see the
    result.
    """
    hidden: Callable[[Row], tuple[str, ...]] = lambda _: ()
    """Returns the absolute paths of the image that agents must not see."""
    is_own: bool = False
    """Rows are written by hand: a field that is not read is a mistake. Published rows have many."""

    def read(self, fields: Fields) -> Row:
        """Return the row of flat fields; raises ValueError (also pydantic's), which names every
        fault.
        """
        model, names = _make_model(self.name, tuple(self.required.items()), self.optional)
        if self.is_own:
            _refuse_unknown(fields, names)
        row = model.model_validate(
            {name: value for name, value in self.convert(fields).items() if name in names}
        )
        model.row_schema = self
        return row


def _refuse_unknown(fields: Fields, names: frozenset[str]) -> None:
    """Raise ValueError for a field that nobody reads; a trainer's layer has fields of its own."""
    if not fields.keys().isdisjoint(LAYERS):
        return
    unknown = sorted(fields.keys() - names - OUTSIDE)
    if unknown:
        hint = suggest(unknown[0], names, ": did you mean {}?")
        shown = ", ".join(shorten(name, 60) for name in unknown[:5])
        raise ValueError(f"{shown} is no field of such a row{hint or ': remove it'}")


@lru_cache
def _make_model(
    name: str, required: tuple[tuple[str, Any], ...], optional: tuple[str, ...]
) -> tuple[type[Row], frozenset[str]]:
    """Return ``Row`` with required fields, and the names under which its schema's fields come."""
    known = {each: Row.model_fields[each] for each in (*COMMON, *dict(required), *optional)}
    aliases = {each: found.alias for each, found in known.items() if found.alias}
    fields: Any = {each: (kind, Field(alias=aliases.get(each))) for each, kind in required}
    model = create_model(f"{name}_row", __base__=Row, **fields)
    return model, frozenset((*known, *aliases.values()))


def name_image(prefix: str, instance_id: str, separator: str = "_1776_") -> str:
    """Return an image named after an instance: lower case, ``__`` replaced, as registries demand.

    >>> name_image("swebench/sweb.eval.x86_64.", "Acme__Calc-7")
    'swebench/sweb.eval.x86_64.acme_1776_calc-7:latest'
    """
    return f"{prefix}{instance_id.replace('__', separator).lower()}:latest"
