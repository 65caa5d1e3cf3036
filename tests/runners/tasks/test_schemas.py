"""Schemas of published sets: each row is read in its own schema, or refused by name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from conf.sections.task import FormatName
from runners.sandboxes.contract import CommandResult
from runners.tasks.contract import Grading, ScriptGrading
from runners.tasks.grading.graders.packages import is_installed
from runners.tasks.grading.graders.parsers import read_results
from runners.tasks.patches.diffs import reverse_diff
from runners.tasks.schemas.detection import read_row
from runners.tasks.schemas.published import SCHEMAS
from runners.tasks.schemas.row import Judge, Row, RowContext
from runners.tasks.schemas.scripts import PYTEST_SUMMARY, wrap_function
from tests.runners.tasks.dataset_rows import CLASSIC
from tests.runners.tasks.published_rows import BUG, FIX, OTHER, ROWS, TESTS, WRAPPED


@pytest.mark.parametrize("name", ROWS)
def test_each_schema_is_detected_by_its_fields(name: str) -> None:
    assert read_row(ROWS[name]).row_schema.name == name


def test_the_configuration_names_every_schema() -> None:
    assert {*get_args(FormatName)} == {"auto", *SCHEMAS} == {"auto", *ROWS}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_layers_of_trainers_are_removed(name: str) -> None:
    row = read_row(WRAPPED[name])
    assert (row.row_schema.name, row.instance_id) == ("swebench", "acme__calc-7")


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


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


IMAGES = {
    "swebench": "swebench/sweb.eval.x86_64.acme_1776_calc-7:latest",
    "swebench_live": "starryzhang/sweb.eval.x86_64.acme_1776_calc-7",
    "swebench_pro": f"jefzda/sweap-images:acme.web-Acme__Web-{'3' * 40}",
    "swe_smith": "jyangballin/swesmith.x86_64.acme_1776_calc.11111111",
    "r2e_gym": f"namanjain12/calc_final:{OTHER}",
    "swe_gym": "xingyaoww/sweb.eval.x86_64.acme_s_calc-7:latest",
    "swe_rebench": "swerebench/sweb.eval.x86_64.acme_1776_calc-7:latest",
    "swe_rebench_v2": "swerebenchv2/acme-gocalc:9-2222222",
    "scale_swe": "example/calc:pr7",
    "multi_swe": "mswebench/cli_m_cli:pr-12",
    "swe_lego": "jierun/x:7",
    "openswe": "example/openswe:7",
    "eval_cmd": "",
    "f2p_script": "",
}
WORKDIRS = {
    "swebench_pro": "/app",
    "swe_rebench_v2": "/GoCalc",
    "scale_swe": "/workspace/calc",
    "multi_swe": "/home/cli",
    "eval_cmd": "/repo",
}


@pytest.mark.parametrize("name", ROWS)
def test_image_and_work_directory_follow_the_rule_of_the_set(name: str) -> None:
    row = read_row(ROWS[name])
    assert row.image or row.row_schema.image(row) or IMAGES[name] == ""
    assert (row.image or row.row_schema.image(row)) == IMAGES[name]
    assert row.workdir == WORKDIRS.get(name, "/testbed")


@pytest.mark.parametrize(
    ("tag", "repo", "instance", "image"),
    [
        (None, "Acme/Web", f"instance_Acme__Web-{'3' * 40}-vnan", f"acme.web-Acme__Web-{'3' * 40}"),
        (
            None,
            "element-hq/element-web",
            f"instance_element-hq__element-web-{'3' * 40}-vnan",
            f"element-hq.element-element-hq__element-web-{'3' * 40}",
        ),
        (
            None,
            "element-hq/element-web",
            "instance_element-hq__element-web-ec0f940ef0e8e3b61078f145f34dc40d1938e6c5-vnan",
            "element-hq.element-web-element-hq__element-web-"
            "ec0f940ef0e8e3b61078f145f34dc40d1938e6c5-vnan",
        ),
    ],
)
def test_the_tags_of_swe_bench_pro_follow_its_helper(
    tag: str | None, repo: str, instance: str, image: str
) -> None:
    row = read_row(
        {**ROWS["swebench_pro"], "repo": repo, "instance_id": instance, "dockerhub_tag": tag}
    )
    assert row.row_schema.image(row) == f"jefzda/sweap-images:{image}"


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({**ROWS["swebench_live"], **ROWS["swe_rebench"]}, ("swebench_live", "swe_rebench")),
        ({**ROWS["eval_cmd"], **ROWS["f2p_script"]}, ("eval_cmd", "f2p_script")),
        ({**ROWS["swebench"], "eval_cmd": "true"}, ("eval_cmd", "swebench")),
        ({**ROWS["swebench"], "repo": "pandas-dev/pandas"}, ("swebench", "swe_gym")),
        ({**ROWS["swe_smith"], "test_cmds": ["x"]}, ("swe_smith", "swebench_live")),
    ],
)
def test_a_row_that_could_be_two_is_refused_with_both(
    row: dict[str, Any], names: tuple[str, str]
) -> None:
    with pytest.raises(ValueError, match=r"task\.format=NAME") as caught:
        read_row(row)
    assert all(name in str(caught.value) for name in names)
    if names[0] == "eval_cmd":
        with pytest.raises(ValueError, match="no field of such a row"):
            read_row(row, names[0])
    else:
        assert read_row(row, names[0]).row_schema.name == names[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protectd": ["a"]}, "protectd is no field of such a row: did you mean protected?"),
        ({"hints_text": "", "xyz": 1}, "xyz is no field of such a row: remove it"),
        ({"run_script": "x"}, "task.format"),
        ({"protected": "a"}, "protected"),
        ({"asks_for_tests": True}, "asks_for_tests needs test_patch"),
    ],
)
def test_a_field_of_an_own_row_that_nobody_reads_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read_row({**ROWS["eval_cmd"], **change}).grading(RowContext(tmp_path, "own"))


def test_every_kind_of_row_may_protect_paths_and_a_trainer_s_layer_has_its_own_fields() -> None:
    for name, row in ROWS.items():
        assert read_row({**row, "protected": ["ci/all.sh"]}, name).protected == ("ci/all.sh",)
    wrapped = {"metadata": ROWS["eval_cmd"], "data_source": "own", "ability": "code"}
    assert read_row(wrapped).row_schema.name == "eval_cmd"


def test_hidden_tests_of_a_command_are_protected_and_put_in_place() -> None:
    row = read_row({**ROWS["eval_cmd"], "test_patch": TESTS, "asks_for_tests": True})
    assert "test_calc.py" in row.row_schema.test_paths(row)
    (place,) = row.row_schema.test_setup(row)
    assert TESTS in place
    plain = read_row(ROWS["eval_cmd"])
    assert plain.row_schema.test_setup(plain) == ()


def test_dotted_modules_of_a_command_are_paths() -> None:
    row = read_row({**ROWS["eval_cmd"], "eval_cmd": "python3 -m unittest tests.test_more.Chunked"})
    assert "tests/test_more.py" in row.row_schema.test_paths(row)


@pytest.mark.parametrize(
    "row",
    [
        {"instance_id": "a", "golden_patch": FIX, "relevant_file_contents": [{}], "prompt": "x"},
        {"instance_id": "a", "trajectory": [{"role": "user"}], "problem_statement": "x"},
        {"messages": [{"role": "user", "content": "x"}]},
    ],
)
def test_trajectories_are_refused_as_what_they_are(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="it has no tests"):
        read_row(row)


def script_of(row: Row) -> str:
    grading = row.grading(RowContext(Path(), "own"))
    assert isinstance(grading, ScriptGrading)
    return grading.script


def make_grading(name: str, folder: Path, **changes: Any) -> Grading:
    return read_row({**ROWS[name], **changes}, name).grading(RowContext(folder, "own"))


def test_every_set_is_graded_as_it_means_it(tmp_path: Path) -> None:
    (tmp_path / "log_parsers.py").write_text("def parse_log_gotest(log):\n    return {}\n")
    kinds = {
        "swebench": "pytest",
        "swebench_live": "log_parser",
        "swe_smith": "pytest",
        "r2e_gym": "status_map",
        "swe_gym": "pytest",
        "swe_rebench": "pytest",
        "swe_rebench_v2": "log_parser",
        "scale_swe": "pytest",
        "swe_lego": "pytest",
        "openswe": "eval_cmd",
        "f2p_script": "f2p_script",
    }
    for name, kind in kinds.items():
        assert make_grading(name, tmp_path).kind == kind, name


def test_the_marker_of_openswe_becomes_an_exit_code(tmp_path: Path) -> None:
    grading = make_grading("openswe", tmp_path)
    assert isinstance(grading, ScriptGrading)
    assert grading.script == "cd /testbed && pytest test_calc.py; exit $?"
    for line in ('echo "OPENSWE_EXIT_CODE=$rc"', "echo OPENSWE_EXIT_CODE=${rc}"):
        own = make_grading("openswe", tmp_path, eval_script=f"pytest\nrc=$?\n{line}\n")
        assert isinstance(own, ScriptGrading)
        assert own.script.rstrip().splitlines()[-1].startswith("exit $")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("swe_rebench_v2", {}, "copy that file beside"),
        ("swe_rebench_v2", {"install_config": "{"}, "install_config"),
        ("swe_rebench_v2", {"install_config": {"test_cmd": "x", "log_parser": "a b"}}, "log"),
        ("swebench_pro", {}, "run_scripts"),
        ("swe_smith", {"FAIL_TO_PASS": ["TestAdd"]}, "no pytest ids"),
        ("swe_smith", {"FAIL_TO_PASS": ["calc.py::test_add"]}, "file of its own tests"),
        ("swe_gym", {"repo": "acme/other", "eval_script": ""}, "no repository of SWE-Gym"),
        ("openswe", {"eval_script": "true # OPENSWE_EXIT_CODE="}, "prints no"),
        ("r2e_gym", {"expected_output_json": "{}"}, "is empty"),
        ("r2e_gym", {"expected_output_json": "[1]"}, "expected_output_json"),
        ("r2e_gym", {"commit_hash": "main"}, "commit_hash"),
        ("swebench_live", {"test_cmds": [1]}, "test_cmds"),
        ("multi_swe", {"base": "x"}, "base"),
        ("multi_swe", {"fix_patch": ""}, "fix_patch"),
        ("scale_swe", {"parent_commit": "x"}, "base_commit"),
        ("swebench", {"instance_id": "a/b"}, "instance_id"),
    ],
)
def test_rows_that_cannot_be_graded_are_refused_with_the_reason(
    tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_grading(name, tmp_path, **change)


def test_only_the_last_line_of_pro_places_its_hidden_tests() -> None:
    row = read_row(ROWS["swebench_pro"])
    schema = row.row_schema
    assert schema.setup(row) == (f"git reset --hard {'1' * 40}",)
    assert schema.test_setup(row) == (f"git checkout {OTHER} -- test/login.js",)
    assert schema.statement(row) == "Login fails.\n\n- return 401\n\nNo new interfaces"


def test_the_reference_fix_of_r2e_leaves_its_tests_out() -> None:
    row = read_row(ROWS["r2e_gym"])
    schema = row.row_schema
    assert schema.reference_patch(row) == FIX
    assert (row.instance_id, schema.statement(row)) == (f"calc__{OTHER[:12]}", "add() subtracts.")
    assert schema.hidden(row) == ("/r2e_tests", "/testbed/run_tests.sh")


def test_cases_of_mypy_are_selected_by_name(tmp_path: Path) -> None:
    patch = (
        "diff --git a/t.test b/t.test\n--- a/t.test\n+++ b/t.test\n@@ -1 +1,3 @@\n a\n"
        "+[case testOne]\n+[case testTwo-xfail]\n"
    )
    grading = make_grading(
        "swe_gym", tmp_path, repo="python/mypy", test_patch=patch, eval_script=""
    )
    assert isinstance(grading, ScriptGrading)
    assert "pytest -n0 -rA -k 'testOne or testTwo-xfail'" in grading.script


def test_names_are_compared_without_their_timings() -> None:
    row = read_row(ROWS["swe_rebench_v2"])
    assert row.row_schema.tests(row) == (("TestAdd",), ("TestSub",))


def test_the_patch_of_swe_smith_is_reversed() -> None:
    row = read_row(ROWS["swe_smith"])
    assert row.row_schema.reference_patch(row) == reverse_diff(BUG)


def test_layers_around_one_another_and_copies_of_a_task_are_one_task() -> None:
    row = ROWS["swebench"]
    outer = {"metadata": {**row, "problem_statement": "reworded", "instance_dict": json.dumps(row)}}
    assert read_row(outer).problem_statement == "reworded"
    assert read_row({"instance": row, "info": row, "task": "code"}).instance_id == "acme__calc-7"


def test_paths_of_a_test_patch_are_words_of_its_script() -> None:
    patch = (
        'diff --git "a/t \\$(id).py" "b/t \\$(id).py"\n--- "a/t \\$(id).py"\n'
        '+++ "b/t \\$(id).py"\n@@ -1 +1 @@\n-a\n+b\n'
    ).replace("\\$", "$")
    row = read_row({**ROWS["swebench"], "test_patch": patch})
    lines = script_of(row).splitlines()
    reset = f"git checkout {row.base_commit} -- 't $(id).py'"
    assert lines.count(reset) == 2
    assert any(line.endswith("-p no:cacheprovider 't $(id).py'") for line in lines)


def test_a_blank_line_of_context_stays_at_the_end_of_a_test_patch() -> None:
    patch = f"{TESTS}@@ -9,1 +13,1 @@\n \n"
    row = read_row({**ROWS["swebench"], "test_patch": patch})
    assert f"{patch.removesuffix(chr(10))}\n" in script_of(row)


def test_a_test_program_gets_the_files_that_a_test_patch_leaves() -> None:
    patch = (
        "diff --git a/test_old.py b/test new.py\nsimilarity index 100%\nrename from test_old.py\n"
        "rename to test new.py\n"
        "diff --git a/test_gone.py b/test_gone.py\ndeleted file mode 100644\n"
        "--- a/test_gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n"
    )
    for name, repo in (("swebench", "o/r"), ("swe_gym", "getmoto/moto"), ("swe_rebench", "o/r")):
        changes = {"test_patch": patch, "eval_script": "", "repo": repo}
        row = read_row({**ROWS[name], **changes}, name)
        lines = script_of(row).splitlines()
        tests = [line for line in lines if "pytest" in line and line[:1] != ":"]
        assert [line.endswith(" 'test new.py'") for line in tests] == [True], tests
        assert sum(line.endswith("-- test_gone.py test_old.py") for line in lines) == 2
        assert {*row.row_schema.test_paths(row)} == {"test_old.py", "test new.py", "test_gone.py"}


def test_a_bug_that_ends_in_blank_context_is_applied_as_it_is() -> None:
    bug = BUG.replace("@@ -1,2 +1,2 @@", "@@ -1,3 +1,3 @@") + " \n"
    for published in (bug, bug.rstrip(), bug[:-1]):
        row = read_row({**ROWS["swe_smith"], "patch": published})
        (applied, _hide) = row.row_schema.setup(row)[-2:]
        assert f"\n{bug}EOF" in applied
        assert row.row_schema.reference_patch(row) == reverse_diff(bug)


NAMES = """\
PASSED t.py::a[x - y]
FAILED t.py::b[x - y] - ValueError - and more
FAILED t.py::c - assert [a] - b
FAILED t.py::d[x - y]
XFAIL t.py::e - not [yet
"""


def test_names_with_a_dash_are_read_whole(tmp_path: Path) -> None:
    (tmp_path / "parser.py").write_text(wrap_function(PYTEST_SUMMARY, "parser"))
    (tmp_path / "log").write_text(NAMES)
    command = [sys.executable, "-I", "parser.py", "log", "log", "found"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = read_results(CommandResult(0, (tmp_path / "found").read_bytes(), b"", 0.1))
    assert found == {
        **dict.fromkeys(("t.py::a[x - y]", "t.py::e"), "passed"),
        **dict.fromkeys(("t.py::b[x - y]", "t.py::c", "t.py::d[x - y]"), "failed"),
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a.py": "one\ntwo\n"}, {"a.py": "one\n2\nthree\n"}),
        ({"a.py": "no newline"}, {"a.py": "newline\n"}),
        ({}, {"new/b.py": "x\n--- a\n+++ b\n"}),
        ({"gone.py": "y\n"}, {}),
    ],
)
def test_a_reversed_diff_undoes_the_diff(
    tmp_path: Path, before: dict[str, str], after: dict[str, str]
) -> None:
    def git(*arguments: str, text: str = "") -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, input=text, check=True, capture_output=True, text=True
        ).stdout

    def write(files: dict[str, str]) -> None:
        git("rm", "-rqf", "--ignore-unmatch", ".")
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(content)
        git("add", "--all")

    git("init", "-q")
    write({"keep": "", **before})
    git("commit", "-qm", "before")
    write({"keep": "", **after})
    diff = git("diff", "--cached", "HEAD")
    git("apply", "--index", text=reverse_diff(diff))
    assert git("diff", "--cached", "HEAD") == ""


def test_diffs_that_have_no_text_are_not_reversed() -> None:
    for line in ("GIT binary patch", "rename from a"):
        with pytest.raises(ValueError, match="cannot be reversed"):
            reverse_diff(f"diff --git a/a b/b\n{line}\n")


@pytest.mark.skipif(not is_installed(), reason="the extra swebench is not installed")
@pytest.mark.parametrize("name", ["swe_smith", "swe_gym", "swe_rebench", "scale_swe", "swe_lego"])
def test_the_official_judge_is_taken_only_where_it_is_asked_for(tmp_path: Path, name: str) -> None:
    row = read_row(ROWS[name])
    judges: dict[Judge, str] = {"auto": "pytest", "own": "pytest", "official": "swebench"}
    for judge, kind in judges.items():
        assert row.grading(RowContext(tmp_path, judge)).kind == kind
