from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conf.errors import ConfigError, ExitCode
from runners.observe.export.parquet import NAME, from_row
from runners.observe.export.run_dump import dump
from runners.observe.export.trajectory import Trajectory
from runners.records.store.run_store import RunStore
from tests.fakes.records import branched_run, example_run


@pytest.mark.parametrize("make", [example_run, branched_run])
def test_a_row_is_the_record(tmp_path: Path, make: Callable[[Path], RunStore]) -> None:
    with make(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("jsonl", "parquet"))
    rows = [from_row(row) for row in pq.read_table(tmp_path / NAME).to_pylist()]
    kept = [json.loads(line) for line in (tmp_path / "trajectories.jsonl").open()]
    assert [list(row) for row in rows] == [list(Trajectory.model_fields)] * len(rows)
    for row, record in zip(rows, kept, strict=True):
        for segment in (*row["segments"], *record["segments"]):
            segment["logprobs"] = [round(logprob, 6) for logprob in segment["logprobs"]]
        assert row == record


def test_the_file_is_compressed_and_has_a_row_group_per_so_many_rollouts(tmp_path: Path) -> None:
    with branched_run(tmp_path / "run", 300) as store:
        dump(store, tmp_path, formats=("parquet",))
    about = pq.ParquetFile(tmp_path / NAME).metadata
    assert about.num_rows == 300
    assert [about.row_group(i).num_rows for i in range(about.num_row_groups)] == [256, 44]
    assert about.row_group(0).column(0).compression == "ZSTD"


def test_a_run_without_rollouts_is_an_empty_table(tmp_path: Path) -> None:
    with branched_run(tmp_path / "run", 0) as store:
        dump(store, tmp_path, formats=("parquet",))
    table = pq.read_table(tmp_path / NAME)
    assert (table.num_rows, table.column_names) == (0, list(Trajectory.model_fields))


def test_without_pyarrow_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        example_run(tmp_path / "run") as store,
        pytest.raises(ConfigError, match=r"pip install 'agentrl-campaigns\[parquet\]'") as caught,
    ):
        dump(store, tmp_path / "out", formats=("parquet",))
    assert caught.value.exit_code == ExitCode.USAGE
    assert list((tmp_path / "out").iterdir()) == []
