"""``agentrl dump-trajectories``: its files, and its answers to wrong requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentrl
from tests.fakes.records import example_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    example_run(tmp_path / "run").close()
    return tmp_path / "run"


def test_every_file_is_listed_with_its_format_and_size(
    agentrl: Agentrl, run_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    formats = "jsonl,atif,parquet,slime,sft,html"
    done = agentrl(
        *("dump-trajectories", str(run_dir), "--format", formats, "--out", str(out)),
        *("--validate", "--json"),
    )
    assert done.code == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["rollouts"], document["validated"]) == (4, True)
    listed = {Path(file["path"]): file for file in document["files"]}
    assert {file["format"] for file in listed.values()} == {*formats.split(","), "summary"}
    written = {path: path.stat().st_size for path in out.rglob("*") if path.is_file()}
    assert {path: file["bytes"] for path, file in listed.items()} == written


def test_the_paths_and_the_size_of_the_export_are_printed(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("dump-trajectories", str(run_dir), "--format", "jsonl,slime", "--validate")
    assert done.code == 0, done.stderr
    names = ("trajectories.jsonl", "slime", "summary.json")
    assert done.stdout.splitlines() == [str(run_dir / "dump" / name) for name in names]
    assert "4 rollouts" in done.stderr
    assert "every record is valid" in done.stderr


def test_filters_without_a_match_are_not_an_error(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl(
        *("dump-trajectories", str(run_dir), "--only", "eval", "--step", "1-9", "--task", "sum*"),
        *("--format", "jsonl,atif,parquet,slime,sft,html", "--min-reward", "2", "--unique"),
    )
    assert done.code == 0, done.stderr
    assert "0 rollouts" in done.stderr
    assert (run_dir / "dump" / "trajectories.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--format", "jsonl,parket"], "did you mean parquet?"),
        (["--step", "7-3"], "--step 7-3: give a step (5) or a range of them (3-7)"),
        (["--format", "html", "--validate"], "--format html,jsonl"),
        (["--format", "jsonl", "--unique"], "--unique is of the examples of --format sft"),
        (["--out", "/dev/null/x"], "choose another --out"),
    ],
)
def test_a_wrong_request_is_a_usage_error_with_its_fix(
    agentrl: Agentrl, run_dir: Path, arguments: list[str], says: str
) -> None:
    done = agentrl("dump-trajectories", str(run_dir), *arguments, "--json")
    assert done.code == 2
    assert says in json.loads(done.stdout)["error"]
    assert not (run_dir / "dump").exists()


def test_a_dump_of_an_unchanged_run_is_the_same(agentrl: Agentrl, run_dir: Path) -> None:
    contents = []
    for out in ("a", "b"):
        done = agentrl("dump-trajectories", str(run_dir), "--out", out, "--format", "jsonl,html")
        assert done.code == 0, done.stderr
        contents.append([path.read_bytes() for path in sorted(Path(out).iterdir())])
    assert contents[0] == contents[1]


def test_examples_for_fine_tuning_are_written_and_checked(agentrl: Agentrl, run_dir: Path) -> None:
    arguments = ("--format", "sft", "--min-reward", "1", "--unique", "--validate")
    done = agentrl("dump-trajectories", str(run_dir), *arguments)
    assert done.code == 0, done.stderr
    assert "every record is valid" in done.stderr
    for name in ("messages.jsonl", "tokens.jsonl"):
        (line,) = (run_dir / "dump" / "sft" / name).read_text().splitlines()
        assert json.loads(line)["id"] == "train-000001-00-00/0"
