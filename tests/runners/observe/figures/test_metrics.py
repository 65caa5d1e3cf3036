"""Each step stands once in ``metrics.jsonl`` and in TensorBoard, whatever was resumed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from runners.observe.figures.metrics import MetricsWriter
from runners.records.store.store_error import StoreError


def rows(run_dir: Path) -> list[dict[str, float | None]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def scalars(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_a_step_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=True)
    writer.write({"step": 1, "loss/policy": 0.5, "policy/k3": math.nan, "note": "x"})
    writer.write({"step": 2, "loss/policy": 0.25})
    assert rows(tmp_path) == [
        {"step": 1, "loss/policy": 0.5, "policy/k3": None, "note": "x"},
        {"step": 2, "loss/policy": 0.25},
    ]
    assert scalars(tmp_path, "loss/policy") == [(1, 0.5), (2, 0.25)]


def test_no_step_appears_twice_after_a_resume(tmp_path: Path) -> None:
    killed = MetricsWriter(tmp_path, tensorboard=True)
    for step in (1, 2, 3):
        killed.write({"step": step, "loss": float(step)})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # cut by kill -9
    resumed = MetricsWriter(tmp_path, tensorboard=True)
    resumed.rewrite([{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}])
    resumed.write({"step": 3, "loss": 30.0})
    resumed.close()
    assert [row["loss"] for row in rows(tmp_path)] == [1.0, 2.0, 30.0]
    assert scalars(tmp_path, "loss") == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "tensorboard"]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_an_open_tensorboard_forgets_the_steps_that_are_written_anew(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=True)
    writer.write({"step": 1, "loss": 1.0})
    writer.write({"step": 2, "loss": 2.0})
    (before,) = (tmp_path / "tensorboard").iterdir()
    data = before.read_bytes()
    writer.rewrite([{"step": 1, "loss": 10.0}])
    before.write_bytes(data)  # a TensorBoard that is open has read it already
    assert scalars(tmp_path, "loss") == [(1, 10.0)]


def test_tensorboard_can_be_switched_off(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.rewrite([])
    writer.write({"step": 1})
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_tensorflow_is_not_imported_even_where_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text(
        "raise SystemExit('tensorflow was imported')"
    )
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from runners.observe.figures.metrics import MetricsWriter\n"
        "MetricsWriter(Path(sys.argv[1]), tensorboard=True).write({'step': 1, 'x': 1.0})"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert scalars(tmp_path, "x") == [(1, 1.0)]


def test_only_the_last_lines_are_written_anew(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.rewrite([{"step": step, "loss": 1.0} for step in (1, 2, 3)])
    file = tmp_path / "metrics.jsonl"
    before = file.stat().st_ino
    assert writer.replace_tail([{"step": 3, "loss": 0.123456}, {"step": 4, "loss": 1.0}])
    assert writer.replace_tail([{"step": 4, "loss": 2.0}, {"step": 6, "loss": 3.0}])
    assert writer.replace_tail([{"step": 5, "loss": 9.0}, {"step": 6, "loss": 3.125}])  # late
    assert writer.replace_tail([{"step": 6, "loss": 3.0}])  # a shorter line
    assert writer.replace_tail([])
    assert [(row["step"], row["loss"]) for row in rows(tmp_path)] == [
        *((1, 1.0), (2, 1.0), (3, 0.123456), (4, 2.0), (5, 9.0), (6, 3.0))
    ]
    assert file.stat().st_ino == before, "the file itself is kept"


def test_a_file_that_somebody_has_changed_is_not_written_in_the_middle(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.rewrite([{"step": 1}])
    file = tmp_path / "metrics.jsonl"
    file.write_text("cut")
    assert not writer.replace_tail([{"step": 2}])
    assert file.read_text() == "cut"
    file.unlink()
    assert not writer.replace_tail([{"step": 2}])
    writer.rewrite([{"step": 1}])
    assert writer.replace_tail([{"step": 2}])


def test_a_directory_that_is_gone_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"metrics\.jsonl"):
        MetricsWriter(tmp_path / "gone", tensorboard=False).write({"step": 1})
