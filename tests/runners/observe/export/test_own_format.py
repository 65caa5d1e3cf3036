"""A format of a plug-in is written beside the others, or refused by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.observe.export.run_dump import DumpError, dump, parse_formats
from runners.system.plugins.loading import PluginError
from tests.fakes.records import example_run

SOURCE = """
from contextlib import contextmanager

@contextmanager
def rewards(directory, run):
    with (directory / "rewards.csv").open("w") as file:
        file.write(f"{run.name}\\n")
        yield lambda rollout: file.write(f"{rollout.record.rollout_id},{rollout.record.reward}\\n")

@contextmanager
def broken(directory, run):
    yield lambda rollout: rollout.nothing

def one(directory): pass
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "form.py"
    place.write_text(SOURCE)
    return place


def test_a_format_of_ones_own_has_every_rollout(file: Path, tmp_path: Path) -> None:
    formats = parse_formats(f"jsonl,{file}:rewards")
    with example_run(tmp_path / "example") as store:
        rollouts = [record for record in store.rollouts() if record.counts]
        report = dump(store, tmp_path / "out", formats=formats)
    lines = (tmp_path / "out" / "rewards.csv").read_text().splitlines()
    assert lines[0] == "example"
    assert [line.partition(",")[0] for line in lines[1:]] == [r.rollout_id for r in rollouts]
    assert {path.name for path in report.paths} >= {"rewards.csv", "trajectories.jsonl"}


def test_a_format_that_fails_leaves_no_file(file: Path, tmp_path: Path) -> None:
    with (
        example_run(tmp_path / "example") as store,
        pytest.raises(DumpError, match=r"form.py:broken raised AttributeError"),
    ):
        dump(store, tmp_path / "out", formats=[f"{file}:broken"])
    assert list((tmp_path / "out").iterdir()) == []


def test_a_format_that_cannot_be_meant_is_refused(file: Path) -> None:
    with pytest.raises(DumpError, match=r"did you mean jsonl.*your own: package.module:Name"):
        parse_formats("jsonk")
    with pytest.raises(PluginError, match="is no ExporterPlugin"):
        parse_formats(f"{file}:one")
    with pytest.raises(DumpError, match=r"must be package.module:Name"):
        parse_formats("a b:c")
