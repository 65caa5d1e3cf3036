"""Detect the schema of a row by the fields that no other schema has; never guess.

A row with the marks of two schemas is refused with both names: ``task.format`` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runners.tasks.schemas.commands import CommandRow, ScriptRow
from runners.tasks.schemas.image_rows import MARKER, LegoRow, OpenSweRow
from runners.tasks.schemas.layers import flatten
from runners.tasks.schemas.multi_swe import MultiSweRow
from runners.tasks.schemas.r2e_gym import R2eRow
from runners.tasks.schemas.row import PlainRow, Row
from runners.tasks.schemas.scale_swe import ScaleSweRow
from runners.tasks.schemas.swe_gym import COMMANDS, GymRow
from runners.tasks.schemas.swe_rebench import RebenchRow, RebenchV2Row
from runners.tasks.schemas.swe_smith import SmithRow
from runners.tasks.schemas.swebench import SwebenchRow
from runners.tasks.schemas.swebench_live import LiveRow
from runners.tasks.schemas.swebench_pro import ProRow
from runners.tasks.section_keys import name_key
from runners.trajectory.printable import shorten

Fields = Mapping[str, Any]
AUTO = "auto"
FORMAT = "task_format"
"""Field in which a row names its own schema, as ``agentrl tasks convert`` writes it."""


def _has(fields: Fields, *names: str) -> bool:
    return all(fields.get(name) not in (None, "", [], {}) for name in names)


def _is_pro(fields: Fields) -> bool:
    names = ("selected_test_files_to_run", "selected_test_files", "dockerhub_tag")
    scripts = ("run_script", "run_script_path", "run_script.sh")
    return any(_has(fields, name) for name in (*names, *scripts))


def _is_smith(fields: Fields) -> bool:
    return str(fields.get("repo", "")).startswith("swesmith/") or "swesmith." in str(
        fields.get("image", "")
    )


def _is_classic(fields: Fields) -> bool:
    return "test_patch" in fields or "FAIL_TO_PASS" in fields


def _is_gym(fields: Fields) -> bool:
    image = str(fields.get("image", ""))
    return _is_classic(fields) and "_s_" in image and "_1776_" not in image


def _is_openswe(fields: Fields) -> bool:
    return _has(fields, "eval_script", "image") and MARKER in str(fields["eval_script"])


MARKS: dict[type[Row], Callable[[Fields], bool]] = {
    R2eRow: lambda fields: _has(fields, "expected_output_json", "image"),
    MultiSweRow: lambda fields: _has(fields, "org", "number", "fix_patch"),
    ScaleSweRow: lambda fields: _has(fields, "image_url", "parent_commit"),
    ProRow: _is_pro,
    SmithRow: _is_smith,
    LiveRow: lambda fields: _has(fields, "test_cmds"),
    RebenchRow: lambda fields: (
        _has(fields, "install_config") and not _has(fields, "image_name", "language")
    ),
    RebenchV2Row: lambda fields: _has(fields, "install_config", "image_name", "language"),
    CommandRow: lambda fields: _has(fields, "eval_cmd"),
    ScriptRow: lambda fields: _has(fields, "f2p_script") and not _has(fields, "parent_commit"),
    LegoRow: lambda fields: _has(fields, "test_cmd", "image", "test_patch"),
    OpenSweRow: _is_openswe,
    GymRow: _is_gym,
}
"""Fields that only one schema has. SWE-bench has none: what it has, many have too."""
_EVERY: tuple[type[Row], ...] = (SwebenchRow, *MARKS)
SCHEMAS = {schema.schema_name: schema for schema in _EVERY}
NO_TESTS = ("trajectory", "messages", "golden_patch", "relevant_file_contents")
"""Fields of published trajectories and of sets that have no tests."""


def read_row(row: Fields, schema: str = AUTO, *, needs_grading: bool = True) -> Row:
    """Return the row in its schema; raises ValueError (also pydantic's) that names every fault.

    ``schema``: a name of ``SCHEMAS``, or "auto". Unless it ``needs_grading``, a row may be without
    tests (a plug-in grades it).
    """
    fields = flatten(row)
    if schema != AUTO:
        found = SCHEMAS[schema]
    elif not needs_grading and fields.get(FORMAT) is None and not list_candidates(fields):
        found = PlainRow
    else:
        found = detect_schema(fields)
    return found.model_validate(found.convert(fields))


def detect_schema(fields: Fields) -> type[Row]:
    """Return the schema of flat fields; raises ValueError if none or more than one fits."""
    if (named := fields.get(FORMAT)) is not None:
        if not isinstance(named, str) or named not in SCHEMAS:
            known = ", ".join(SCHEMAS)
            raise ValueError(f"{FORMAT}={shorten(repr(named), 60)} is no schema: {known}")
        return SCHEMAS[named]
    candidates = list_candidates(fields)
    if len(candidates) > 1:
        names = " and ".join(candidate.schema_name for candidate in candidates)
        raise ValueError(
            f"its fields are those of {names}: say which with {name_key('format')}=NAME"
        )
    if candidates:
        return candidates[0]
    if any(_has(fields, name) for name in NO_TESTS):
        raise ValueError(
            "it has no tests: a trajectory or a pair of problem and patch is no task that could "
            "be graded"
        )
    raise ValueError(
        "its grading is unknown: it needs FAIL_TO_PASS and test_patch (SWE-bench), "
        "run_script and parser_script (SWE-bench-Pro), eval_cmd, or f2p_script; docs/data.md has "
        "the other formats"
    )


def list_candidates(fields: Fields) -> list[type[Row]]:
    """Return the schemas that flat fields could be of."""
    candidates = [schema for schema, is_marked in MARKS.items() if is_marked(fields)]
    if any(each in (CommandRow, ScriptRow) for each in candidates):
        if _has(fields, "test_patch", "FAIL_TO_PASS"):  # named tests, which a command would replace
            candidates.append(SwebenchRow)
    elif not candidates and _is_classic(fields):
        candidates = [SwebenchRow]
        if str(fields.get("repo", "")).lower() in COMMANDS and not _has(fields, "repo_path"):
            candidates.append(GymRow)
    return candidates
