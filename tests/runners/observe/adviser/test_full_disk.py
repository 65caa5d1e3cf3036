"""A disk that really fills is named before it is full: file systems of a few pages' worth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.observe.adviser.adviser import advise_run
from runners.observe.adviser.metric_lines import MetricLines
from runners.records.store.free_disk import measure_free_mb
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout
from tests.fakes.small_disk import SmallDisk, mount_small_disk

pytestmark = pytest.mark.integration
MB = 1_000_000
CONFIG_OF_A_LONG_RUN = {**CONFIG, "run": {"steps": 100}}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mount_small_disk(tmp_path / "disk") as mounted:
        yield mounted


def finish_step(store: RunStore, step: int) -> list[str]:
    """Finish a step as a campaign does; return the names of the alarms after it."""
    store.begin_step(step, ["task"])
    store.put_rollout(a_rollout(f"train-{step:06}-000-00"))
    store.finish_step(step, {"disk/free_mb": measure_free_mb(store.run_dir)})
    return [alarm.name for alarm in advise_run(store)]


def test_less_than_a_gigabyte_is_named_as_soon_as_it_is_left(disk: SmallDisk) -> None:
    disk.resize(1_150 * MB // 1024)
    run_dir = disk.place / "run"
    with RunStore.create(run_dir, CONFIG_OF_A_LONG_RUN) as store:
        assert [finish_step(store, step) for step in range(1, 5)] == [[]] * 4
        seen = []
        for step in range(5, 8):
            with (run_dir / f"checkpoint-{step}").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 50 * MB)
            seen.append(finish_step(store, step))
        assert seen == [[], [], ["full_disk"]]
        [alarm] = MetricLines(store).read_step(7)["alarms"]
        assert "MB are free in the run's directory after step 7" in alarm["evidence"]
        for step in range(5, 8):
            (run_dir / f"checkpoint-{step}").unlink()
        assert finish_step(store, 8) == []


def test_a_disk_that_is_full_in_ten_steps_is_named_within_three(disk: SmallDisk) -> None:
    """Another program takes the space: the file system becomes smaller with each step."""
    disk.resize(6_000 * MB // 1024)
    with RunStore.create(disk.place / "run", CONFIG_OF_A_LONG_RUN) as store:
        assert [finish_step(store, step) for step in range(1, 5)] == [[]] * 4
        seen = []
        for step in range(5, 8):
            disk.resize((6_000 - 900 * (step - 4)) * MB // 1024)
            seen.append(finish_step(store, step))
        assert seen[-1] == ["full_disk"]
