"""``python -m tests.programs``: what a registry is asked, and what is said and written of a row."""

from __future__ import annotations

import pytest

from runners.observe.adviser.rollouts import PROGRAMS_WITHOUT_EDITS
from tests.programs import (
    PAGE,
    RegistryError,
    describe_changes,
    find_package,
    newest_cases,
    read_newest,
    write_rows,
)
from tests.runners.rollouts.harnesses.program_table import CASES, COLUMNS, HEAD, Case, Row

PI = next(case for case in CASES if case.program == "pi")
ROW = Row(PI, "policy.finished", 37, 37, branches_right=True, breaks=0, edits=0, prompt_kb=5)


@pytest.mark.parametrize(
    ("program", "package"),
    [
        ("claude_code", ("npm", "@anthropic-ai/claude-code")),
        ("pi", ("npm", "@earendil-works/pi-coding-agent")),
        ("aider", ("pip", "aider-chat")),
        ("openhands", ("pip", "openhands")),
    ],
)
def test_a_program_is_looked_up_where_its_preset_installs_it_from(
    program: str, package: tuple[str, str]
) -> None:
    assert find_package(program) == package


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("0.171.0\n", "0.171.0"),
        ("mini-swe-agent (2.4.6)\nAvailable versions: 2.4.6, 2.4.5, 2.4.4\n", "2.4.6"),
        ("openai (3.0.0rc1)\nAvailable versions: 3.0.0rc1, 2.9.0\n", "3.0.0rc1"),
    ],
    ids=["npm", "pip", "pip, a candidate"],
)
def test_the_newest_version_is_read_as_npm_and_pip_print_it(printed: str, version: str) -> None:
    assert read_newest(printed) == version


@pytest.mark.parametrize("printed", ["", "\n", "mini-swe-agent (none)\n1.2.3\n"])
def test_a_registry_that_names_no_version_is_an_error_and_no_crash(printed: str) -> None:
    with pytest.raises(RegistryError, match="no version in"):
        read_newest(printed)


def test_a_new_version_is_tried_in_the_scenarios_of_the_last_one() -> None:
    newest = {"claude_code": "9.0.0", "pi": PI.version, "opencode": ""}
    cases = [case for case in CASES if case.program in newest]
    found = list(newest_cases(cases, newest.__getitem__))
    assert {(case.program, case.version) for case in found} == {("claude_code", "9.0.0")}
    assert len({case.scenario for case in found}) == len(found)


def test_the_alarm_for_edits_knows_the_programs_that_make_none_in_the_table() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if " | odd | " in line]
    edits = {row[0].removeprefix("| "): row[COLUMNS.index("edits")] for row in rows}
    presets = {name for name, number in edits.items() if number == "0"}
    assert presets | {"native"} == set(PROGRAMS_WITHOUT_EDITS)


def test_a_page_gets_the_rows_that_ran_and_keeps_the_others_and_the_date_is_new() -> None:
    page = f"Each on 1 May 2026 is\n\n{HEAD}\n| aider | 0.1.0 | linear | x |\n\nend\n"
    assert "0.1.0" not in (written := write_rows([ROW], page)), "a version that is tried no more"
    assert f"{HEAD}\n{ROW}\n\nend" in written
    assert "1 May 2026" not in written
    assert f"{ROW}\n" in write_rows([], written)


def test_what_changed_names_each_cell_that_differs_from_the_page() -> None:
    page = write_rows([ROW], f"{HEAD}\n|---|\n")
    newer = Row(
        Case("pi", "linear", ("harness=pi@9.9.9",), ()),
        *("policy.finished", 36, 37),
        branches_right=True,
        breaks=0,
        edits=0,
        prompt_kb=5,
        problems=("not all that was sampled is trained",),
    )
    assert describe_changes(ROW, page).endswith("nothing; every promise holds")
    assert describe_changes(newer, page) == (
        f"pi-9.9.9-linear: version {PI.version} → 9.9.9, trained / sampled tokens 37 / 37 → 36 / 37"
        "; not all that was sampled is trained"
    )
