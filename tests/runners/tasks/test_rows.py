"""Row schemas, and the messages on malformed rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from runners.tasks.schemas.detection import read_row
from tests.runners.tasks.dataset_rows import CLASSIC


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def test_lists_are_read_as_lists_and_as_json_text() -> None:
    row = read_row(CLASSIC)
    assert (row.fail_to_pass, row.pass_to_pass) == (("t.py::a",), ("t.py::b", "t.py::c"))
    assert row.workdir == "/testbed"


def test_a_new_row_has_its_own_eval_script() -> None:
    extra = {"eval_script": "#!/bin/bash\n", "log_parser": "parse_log_django", "image": "i"}
    row = read_row({**CLASSIC, **extra})
    assert (row.eval_script, row.log_parser, row.image) == (
        "#!/bin/bash\n",
        "parse_log_django",
        "i",
    )


@pytest.mark.parametrize("text", [False, True])
def test_fields_in_the_remote_environment_are_found(text: bool) -> None:
    inner: Any = {"remote_env_info": without(CLASSIC, "problem_statement")}
    row = read_row(
        {
            "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "Mend it."}],
            "metadata": json.dumps(inner) if text else inner,
        }
    )
    assert (row.instance_id, row.problem_statement) == ("o__r-1", "Mend it.")


def test_outer_metadata_wins_over_inner_metadata() -> None:
    row = read_row(
        {
            "prompt": "p",
            "label": "from-label",
            "metadata": {
                "eval_cmd": "make test",
                "pre_commands": "pip install x\\ncd y",
                "workdir": "/repo",
                "remote_env_info": {"workdir": "/other", "f2p_script": ""},
            },
        }
    )
    assert row.row_schema.name == "eval_cmd"
    assert (row.instance_id, row.problem_statement, row.workdir) == ("from-label", "p", "/repo")
    assert row.pre_commands == ("pip install x\ncd y",)
    assert row.base_commit == ""


def test_a_script_is_a_row_of_its_own_kind() -> None:
    inner = {"instance_id": "s", "f2p_script": "print(1)", "problem_statement": "p"}
    assert read_row({"metadata": {"remote_env_info": inner}}).row_schema.name == "f2p_script"


def test_a_row_of_pro_is_read_flat_as_on_the_hub_and_nested() -> None:
    scripts = {"run_script": "pytest", "parser_script": "import sys"}
    hub = {
        **without(CLASSIC, "FAIL_TO_PASS", "PASS_TO_PASS"),
        **scripts,
        "fail_to_pass": "['a', \"it's\"]",
        "pass_to_pass": "[]",
        "selected_test_files_to_run": '["t.py"]',
        "before_repo_set_cmd": "git checkout x -- t.py",
    }
    row = read_row(hub)
    assert row.row_schema.name == "swebench_pro"
    assert (row.fail_to_pass, row.selected_test_files) == (("a", "it's"), ("t.py",))
    assert row.before_repo_set_cmd == ("git checkout x -- t.py",)
    nested = read_row(
        {
            "metadata": {
                **without(CLASSIC, "FAIL_TO_PASS", "PASS_TO_PASS"),
                "swepro": {
                    "run_script_path": "r.sh",
                    "parser_script_path": "p.py",
                    "selected_test_files": ["t.py"],
                    "fail_to_pass": ["a"],
                    "pass_to_pass": [],
                },
            }
        }
    )
    assert nested.row_schema.name == "swebench_pro"
    assert nested.run_script_path == "r.sh"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_commit": "main"}, "base_commit"),
        ({"instance_id": "../x"}, "instance_id"),
        ({"FAIL_TO_PASS": "t.py::a"}, "neither a list nor"),
        ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS"),
        ({"problem_statement": None}, "problem_statement"),
        ({"test_patch": None}, "test_patch"),
    ],
)
def test_malformed_fields_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        read_row({**CLASSIC, **change})


def test_a_row_without_grading_fields_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="its grading is unknown"):
        read_row({"instance_id": "x", "problem_statement": "p"})
