"""Schemas of task rows: SWE-bench (5.x and classic), SWE-bench-Pro, rows with a command or script.

A row may be flat, or have fields in ``metadata`` and ``metadata.remote_env_info``; of a field that
occurs twice, the outer one counts. The fields determine the schema. Unknown fields are ignored,
as published datasets have many.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

ID_LIMIT = 256
"""Characters; a longer label is not an id."""


def _read_list(value: object) -> object:
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


def _read_commands(value: object) -> object:
    """Return commands: a list, or one text in which newlines may be escaped."""
    if isinstance(value, str):
        return (value.replace("\\n", "\n"),) if value.strip() else ()
    return tuple(value) if isinstance(value, list) else value


def _empty_if_none(value: object) -> object:
    return "" if value is None else value


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
NameList = Annotated[tuple[Name, ...], BeforeValidator(_read_list)]
Commands = Annotated[tuple[str, ...], BeforeValidator(_read_commands)]
Text = Annotated[str, BeforeValidator(_empty_if_none)]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""An id that can name sandboxes, files and directories."""


class Row(BaseModel):
    """Fields of every row."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)

    instance_id: Id
    problem_statement: Name
    base_commit: Commit | Literal[""] = ""
    """Empty: the repository's HEAD (rows of images name no commit)."""
    repo: Text = ""
    """``owner/name``."""
    repo_path: Text = ""
    """Directory, bundle (relative to the row's file) or URL to fetch the repository from."""
    patch: Text = ""
    """The reference fix."""
    workdir: Text = "/testbed"
    """The repository's path in commands."""
    pre_commands: Commands = ()
    image: Text = ""
    """Image of its sandboxes, where sandboxes have images."""


class SwebenchRow(Row):
    """SWE-bench. Rows of 5.x have their eval script, classic rows leave it to the harness."""

    base_commit: Commit
    test_patch: Name
    fail_to_pass: NameList = Field(alias="FAIL_TO_PASS")
    pass_to_pass: NameList = Field(alias="PASS_TO_PASS")
    version: Text = ""
    environment_setup_commit: Text = ""
    eval_script: Text = ""
    log_parser: Text = ""
    eval_type: Text = ""


class ProRow(Row):
    """SWE-bench-Pro."""

    fail_to_pass: NameList
    pass_to_pass: NameList
    before_repo_set_cmd: Commands = ()
    selected_test_files: NameList
    run_script: Text = ""
    run_script_path: Text = ""
    """File on this machine, relative to the row's file; instead of ``run_script``."""
    parser_script: Text = ""
    parser_script_path: Text = ""
    workdir: Text = "/app"


class CommandRow(Row):
    """A row that is solved if a shell command ends with exit code 0."""

    eval_cmd: Name
    fail_to_pass: NameList = Field(default=(), alias="FAIL_TO_PASS")
    pass_to_pass: NameList = Field(default=(), alias="PASS_TO_PASS")


class ScriptRow(Row):
    """A row that is solved if a Python program ends with exit code 0."""

    f2p_script: Name


AnyRow = SwebenchRow | ProRow | CommandRow | ScriptRow
_PRO = {"fail_to_pass": "FAIL_TO_PASS", "pass_to_pass": "PASS_TO_PASS"}


def read_row(row: Mapping[str, Any]) -> AnyRow:
    """Return the row in its schema; raises ValueError (also pydantic's) that names every fault."""
    fields = _flatten(row)
    if "run_script" in fields or "run_script_path" in fields:
        for ours, theirs in _PRO.items():
            fields.setdefault(ours, fields.get(theirs))
        if "selected_test_files" not in fields and "selected_test_files_to_run" in fields:
            fields["selected_test_files"] = fields["selected_test_files_to_run"]
        return ProRow.model_validate(fields)
    if "eval_cmd" in fields:
        return CommandRow.model_validate(fields)
    if "f2p_script" in fields:
        return ScriptRow.model_validate(fields)
    if "test_patch" in fields or "FAIL_TO_PASS" in fields:
        return SwebenchRow.model_validate(fields)
    raise ValueError(
        "its grading is unknown: it needs FAIL_TO_PASS and test_patch (SWE-bench), "
        "run_script and parser_script (SWE-bench-Pro), eval_cmd, or f2p_script"
    )


def _flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of all layers, the outer layer first; empty fields are absent."""
    layers = [row]
    for name in ("metadata", "remote_env_info", "swepro"):
        inner = next((layer[name] for layer in reversed(layers) if layer.get(name)), None)
        if isinstance(inner, str):
            inner = json.loads(inner)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            raise ValueError(f"{name} is not an object")
        layers.append(inner)
    fields: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if value is not None and value != "":
                fields.setdefault(name, value)
    label = row.get("label")
    if isinstance(label, str) and 0 < len(label) < ID_LIMIT:
        fields.setdefault("instance_id", label)
    if "problem_statement" not in fields and (text := _prompt_text(row.get("prompt"))):
        fields["problem_statement"] = text
    fields.setdefault("image", fields.get("image_url", ""))
    return fields


def _prompt_text(prompt: object) -> str:
    """Return the text of a prompt: the string itself, or the first user message of a list."""
    if isinstance(prompt, str):
        return prompt
    for message in prompt if isinstance(prompt, list) else ():
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""
