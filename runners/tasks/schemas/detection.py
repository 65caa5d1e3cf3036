"""Detect the schema of a row by the fields that no other schema has; never guess.

A row with the marks of two schemas is refused with both names: ``task.format`` decides.
"""

from __future__ import annotations

from runners.records.text import shorten
from runners.tasks.schemas.layers import flatten
from runners.tasks.schemas.published import GYM_COMMANDS, PLAIN, SCHEMAS, has, is_classic
from runners.tasks.schemas.row import FORMAT, Fields, Row, Schema
from runners.tasks.section_keys import name_key

AUTO = "auto"

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
        found = PLAIN
    else:
        found = detect_schema(fields)
    return found.read(fields)


def detect_schema(fields: Fields) -> Schema:
    """Return the schema of flat fields; raises ValueError if none or more than one fits."""
    if (named := fields.get(FORMAT)) is not None:
        if not isinstance(named, str) or named not in SCHEMAS:
            known = ", ".join(SCHEMAS)
            raise ValueError(f"{FORMAT}={shorten(repr(named), 60)} is no schema: {known}")
        return SCHEMAS[named]
    candidates = list_candidates(fields)
    if len(candidates) > 1:
        names = " and ".join(candidate.name for candidate in candidates)
        raise ValueError(
            f"its fields are those of {names}: say which with {name_key('format')}=NAME"
        )
    if candidates:
        return candidates[0]
    if any(has(fields, name) for name in NO_TESTS):
        raise ValueError(
            "it has no tests: a trajectory or a pair of problem and patch is no task that could "
            "be graded"
        )
    raise ValueError(
        "its grading is unknown: it needs FAIL_TO_PASS and test_patch (SWE-bench), "
        "run_script and parser_script (SWE-bench-Pro), eval_cmd, or f2p_script; docs/tasks.md has "
        "the other formats"
    )


def list_candidates(fields: Fields) -> list[Schema]:
    """Return the schemas that flat fields could be of."""
    candidates = [schema for schema in SCHEMAS.values() if schema.mark(fields)]
    if any(each.name in ("eval_cmd", "f2p_script") for each in candidates):
        if has(fields, "test_patch", "FAIL_TO_PASS"):  # named tests, which a command would replace
            candidates.append(SCHEMAS["swebench"])
    elif not candidates and is_classic(fields):
        candidates = [SCHEMAS["swebench"]]
        if str(fields.get("repo", "")).lower() in GYM_COMMANDS and not has(fields, "repo_path"):
            candidates.append(SCHEMAS["swe_gym"])
    return candidates
