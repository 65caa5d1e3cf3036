"""Hostile rows and directories: each ends in a refusal that names line and field, or is harmless.

The honest rows of each schema are in ``published_rows``; what a hostile row *does* in its sandbox
(loops, forks, prints) is bounded there (``test_hostile_workspaces``, ``test_script_proofs``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.tasks.sets.dataset_files import DatasetError
from runners.tasks.sets.dataset_report import DatasetReport, read_dataset
from tests.runners.tasks.dataset_rows import config, write
from tests.runners.tasks.published_rows import FIX, ROWS

CALC: dict[str, Any] = {**ROWS["swebench"], "repo_path": "repo"}
COMMAND: dict[str, Any] = {
    "instance_id": "c", "problem_statement": "p", "eval_cmd": "true", "repo_path": "repo",
    "base_commit": "1" * 40,
}  # fmt: skip
DEEP = "[" * 100_000
NESTED: Any = json.loads("[" * 600 + "]" * 600)


def wrap(row: dict[str, Any], times: int) -> dict[str, Any]:
    for _ in range(times):
        row = {"metadata": row}
    return row


def outside(path: str) -> str:
    return FIX.replace("calc.py", path)


FIELDS: dict[str, tuple[dict[str, Any] | str | bytes, str]] = {
    "a reference patch of prose": ({**CALC, "patch": "Use + in add()."}, "patch: it is no diff"),
    "a test patch of prose": ({**CALC, "test_patch": "assert add"}, "test_patch: it is no diff"),
    "a fix patch of prose": ({**ROWS["multi_swe"], "fix_patch": "+"}, "fix_patch: it is no diff"),
    "two tasks in layers": (
        {"instance": CALC, "info": {**CALC, "instance_id": "b"}},
        "info and instance hold two tasks (another instance_id): leave one out",
    ),
    "two tasks in layers of one name": (
        {"metadata": CALC, "extra_info": {"metadata": {**CALC, "problem_statement": "other"}}},
        "metadata and extra_info.metadata hold two tasks (another problem_statement)",
    ),
    "brackets in brackets": (DEEP, "brackets in brackets"),
    "brackets in a text list": ({**CALC, "FAIL_TO_PASS": DEEP}, "FAIL_TO_PASS="),
    "a list of lists of lists": ({**CALC, "FAIL_TO_PASS": NESTED}, "FAIL_TO_PASS="),
    "a literal that grows": ({**CALC, "FAIL_TO_PASS": "['a'] * 10**9"}, "FAIL_TO_PASS="),
    "a literal that calls": ({**CALC, "FAIL_TO_PASS": "__import__('os').getcwd()"}, "FAIL_TO_PASS"),
    "a literal of operators": ({**CALC, "FAIL_TO_PASS": "-" * 100_000 + "1"}, "FAIL_TO_PASS="),
    "a million names": ({**CALC, "PASS_TO_PASS": ["a"] * 1_000_000}, "PASS_TO_PASS"),
    "an id that leads out": ({**CALC, "instance_id": "../../x"}, "instance_id="),
    "an id with a slash": ({**CALC, "instance_id": "a/b"}, "instance_id="),
    "an id with NUL": ({**CALC, "instance_id": "a\0b"}, "instance_id="),
    "an id with a newline": ({**CALC, "instance_id": "a\n"}, "instance_id="),
    "an id with an escape": ({**CALC, "instance_id": "a\x1b[31m"}, "instance_id="),
    "an id of 300 letters": ({**CALC, "instance_id": "a" * 300}, "instance_id="),
    "an id of other digits": ({**CALC, "instance_id": "١٢"}, "instance_id="),
    "an id that is an option": ({**CALC, "instance_id": "--help"}, "instance_id="),
    "a huge integer": ('{"instance_id": ' + "9" * 5000 + "}", "not JSON"),
    "an integer as an id": ({**CALC, "instance_id": 10**30}, "instance_id="),
    "no number": ('{"instance_id": NaN}', "not JSON: NaN is no number of JSON"),
    "infinity": ('{"instance_id": -Infinity}', "-Infinity is no number of JSON"),
    "a key twice": ('{"patch": "a", "patch": "b"}', "the key 'patch' is there twice"),
    "bytes that are no text": (b'{"instance_id": "\xff"}', "not UTF-8: byte 0xff at position 18"),
    "half a character": (json.dumps({**CALC, "patch": "\ud800"}), "patch"),
    "half a character in a name": (json.dumps({**CALC, "FAIL_TO_PASS": ["\udc80"]}), "FAIL_TO"),
    "NUL in a command": ({**COMMAND, "eval_cmd": "true\0"}, "eval_cmd"),
    "NUL in a statement": ({**CALC, "problem_statement": "a\0"}, "problem_statement"),
    "a patch of .git": ({**CALC, "test_patch": outside(".git/hooks/pre-commit")}, "test_patch"),
    "a patch that leads out": ({**CALC, "test_patch": outside("../../etc/x")}, "test_patch"),
    "a fix of .git": ({**CALC, "patch": outside("a/.GIT/config")}, "patch"),
    "a work directory of commands": ({**CALC, "workdir": "/x; touch /y"}, "workdir="),
    "the root as work directory": ({**CALC, "workdir": "/"}, "workdir="),
    "a relative work directory": ({**CALC, "workdir": "testbed"}, "workdir="),
    "a work directory that leads out": ({**CALC, "workdir": "/testbed/../etc"}, "workdir="),
    "an image of commands": ({**CALC, "image": "a; touch /y"}, "image="),
    "an image that is an option": ({**CALC, "image": "--privileged"}, "image="),
    "an image with a substitution": ({**CALC, "image": "$(id)"}, "image="),
    "a clone that leads out": ({**CALC, "repo_path": "", "repo": "../secret"}, "repo=../secret"),
    "a clone by its path": ({**CALC, "repo_path": "", "repo": "/etc"}, "repo=/etc"),
    "a program as a source": ({**CALC, "repo_path": "ext::sh -c true"}, "repo_path="),
    "a commit that is an option": ({**CALC, "base_commit": "--upload-pack=x"}, "base_commit="),
    "two schemas": ({**CALC, **ROWS["swebench_live"]}, ""),
    "two gradings": ({**COMMAND, "f2p_script": "x"}, "eval_cmd and f2p_script"),
    "fifty layers": (wrap(CALC, 50), "its grading is unknown"),
    "a layer that is a list": ({"metadata": [CALC]}, "metadata is not an object"),
    "a layer of brackets": ({"metadata": DEEP}, "metadata is neither"),
    "a list as a row": ("[1]", "a row must be an object"),
    "a pipe as a parser": (
        {**ROWS["swebench_pro"], "run_script": "x", "parser_script_path": "pipe"},
        "no such file",
    ),
    "a huge parser": (
        {**ROWS["swebench_pro"], "run_script": "x", "parser_script_path": "sparse"},
        "larger than",
    ),
    "a parser that leads out": (
        {**ROWS["swebench_pro"], "run_script": "x", "parser_script_path": "../secret"},
        "leads out of",
    ),
    "a parser by a link that leads out": (
        {**ROWS["swebench_pro"], "run_script": "x", "parser_script_path": "link/secret"},
        "leads out of",
    ),
    "a script by its whole path": (
        {**ROWS["swebench_pro"], "run_script": "", "run_script_path": "/etc/hostname"},
        "leads out of",
    ),
    "a parser of another name": (
        {**ROWS["swe_rebench_v2"], "install_config": {"test_cmd": "x", "log_parser": "a();b"}},
        "is no function",
    ),
    "a map of other values": (
        {**ROWS["r2e_gym"], "expected_output_json": '{"a": [1]}'},
        "expected_output_json",
    ),
    "a number that is a text": ({**ROWS["multi_swe"], "number": "1; x"}, "number="),
}  # fmt: skip
HARMLESS = {"two schemas"}
"""Rows that have the fields of one schema only, with more that is ignored."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the rows, with what hostile rows name."""
    (tmp_path / "secret").mkdir()
    place = tmp_path / "rows"
    (place / "repo").mkdir(parents=True)
    (place / "clones").mkdir()
    (place / "log_parsers.py").write_text("def parse(log):\n    return {}\n")
    os.mkfifo(place / "pipe")
    (place / "link").symlink_to(tmp_path)
    with (place / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    return place


def read(folder: Path, content: dict[str, Any] | str | bytes) -> DatasetReport:
    line = json.dumps(content) if isinstance(content, dict) else content
    file = folder / "rows.jsonl"
    file.write_bytes(b"\n" + (line.encode() if isinstance(line, str) else line) + b"\n")
    return read_dataset(config(file, folder / "clones"), str(file))


@pytest.mark.parametrize("name", FIELDS)
def test_a_hostile_row_is_refused_with_its_line_and_field(folder: Path, name: str) -> None:
    content, words = FIELDS[name]
    report = read(folder, content)
    if name in HARMLESS:
        assert len(report.tasks) + len(report.faults) == 1
        return
    assert not report.tasks
    [fault] = report.faults
    assert fault.startswith("rows.jsonl:2: ")
    assert words in fault
    assert len(fault) < 1000
    assert fault.isprintable()
    assert sorted(p.name for p in folder.parent.iterdir()) == ["rows", "secret"]


@pytest.mark.parametrize("name", ROWS)
def test_an_honest_row_is_never_refused_as_hostile(folder: Path, name: str) -> None:
    report = read(folder, ROWS[name])
    assert not any(word in str(report.faults) for word in ("workdir=", "image=", "patch", "NUL"))


def test_protected_paths_stay_in_the_repository(folder: Path) -> None:
    ids = ["/etc/passwd::a", "../../x.py::a", ".git/config::a", "t.py::a"]
    (task,) = read(folder, {**COMMAND, "FAIL_TO_PASS": ids}).tasks
    assert task.protected == ("t.py",)


def test_a_byte_order_mark_is_no_part_of_the_first_row(folder: Path) -> None:
    file = folder / "rows.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(CALC).encode())
    assert len(read_dataset(config(file), str(file)).tasks) == 1


def test_a_row_without_an_end_is_named_and_the_next_one_is_read(folder: Path) -> None:
    file = folder / "rows.jsonl"
    with file.open("wb") as rows:
        rows.truncate(65 << 20)
        rows.seek(0, os.SEEK_END)
        rows.write(b"\n" + json.dumps(CALC).encode() + b"\n")
    report = read_dataset(config(file), str(file))
    assert report.faults == ("rows.jsonl:1: longer than 64 MiB",)
    assert len(report.tasks) == 1


def test_ids_that_collide_are_named(folder: Path) -> None:
    file = write(folder / "rows.jsonl", [CALC, CALC, {**CALC, "instance_id": "Acme__calc-7"}])
    assert read_dataset(config(file), str(file)).faults == (
        "rows.jsonl:2: acme__calc-7 is in rows.jsonl:1 already",
    )


def sparse(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 30)


FILES: dict[str, Callable[[Path], object]] = {
    "rows.json": sparse,
    "pipe.jsonl": os.mkfifo,
    "loop.jsonl": lambda place: place.symlink_to(place),
    "deep.json": lambda place: place.write_text(DEEP),
    "object.json": lambda place: place.write_text("{}"),
    "text.parquet": lambda place: place.write_bytes(b"PAR1" + b"\0" * 64 + b"PAR1"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_as_a_whole(tmp_path: Path, name: str) -> None:
    FILES[name](tmp_path / name)
    with pytest.raises(DatasetError, match=r"task\.path="):
        read_dataset(config(tmp_path / name), str(tmp_path / name))


def make_directory(place: Path, config_text: str = "") -> Path:
    """Make a Harbor task."""
    for name in ("tests", "environment", "solution"):
        (place / name).mkdir(parents=True)
    text = '[environment]\ndocker_image = "python:3.12-slim"\nworkdir = "/app"\n'
    (place / "task.toml").write_text(config_text or text)
    (place / "instruction.md").write_text("Do it.")
    (place / "tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    return place


def replace_by_pipe(task: Path) -> None:
    (task / "task.toml").unlink()
    os.mkfifo(task / "task.toml")


DIRECTORIES: dict[str, Callable[[Path], object]] = {
    "a link out": lambda task: (task / "tests/out").symlink_to("/etc"),
    "a link to itself": lambda task: (task / "tests/loop").symlink_to("loop"),
    "a link to its parent": lambda task: (task / "tests/up").symlink_to(".."),
    "a named pipe": lambda task: os.mkfifo(task / "environment/pipe"),
    "brackets in brackets": lambda task: (task / "task.toml").write_text("a = " + "[" * 5000),
    "a compose file of brackets": lambda task: (
        (task / "environment/docker-compose.yaml").write_text("[" * 5000)
    ),
    "tables in tables": lambda task: (task / "task.toml").write_text("[" + "a." * 2000 + "a]"),
    "a huge integer": lambda task: (task / "task.toml").write_text("a = " + "9" * 5000),
    "bytes that are no text": lambda task: (task / "instruction.md").write_bytes(b"\xff\xfe"),
    "no configuration but a pipe": replace_by_pipe,
    "a sparse configuration": lambda task: sparse(task / "task.toml"),
    "a sparse instruction": lambda task: sparse(task / "instruction.md"),
}  # fmt: skip


REASONS = {
    "a link out": "leads out of the task",
    "a link to itself": "leads nowhere",
    "a link to its parent": "in a circle",
    "a named pipe": "neither a file nor a directory",
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_hostile_directory_is_refused_by_name(tmp_path: Path, name: str) -> None:
    DIRECTORIES[name](make_directory(tmp_path / "suite/bad"))
    make_directory(tmp_path / "suite/good")
    report = read_dataset(config(tmp_path / "suite"), str(tmp_path / "suite"))
    assert [task.id for task in report.tasks] == ["good"]
    [fault] = report.faults
    assert fault.startswith("bad: ")
    assert REASONS.get(name, "") in fault
    assert len(fault) < 1000


def test_directories_far_down_are_no_reason_to_fail(tmp_path: Path) -> None:
    place = tmp_path / "suite"
    make_directory(place / "good")
    deep = place
    for _ in range(600):
        deep = deep / "d"
    deep.mkdir(parents=True)
    report = read_dataset(config(place), str(place))
    assert [task.id for task in report.tasks] == ["good"]


@pytest.mark.parametrize(
    ("text", "words"), [("tasks = 5", "tasks is no list"), ("a = " + "[" * 5000, "brackets")]
)
def test_a_hostile_manifest_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "dataset.toml").write_text(text)
    with pytest.raises(DatasetError, match=words):
        read_dataset(config(tmp_path), str(tmp_path))
