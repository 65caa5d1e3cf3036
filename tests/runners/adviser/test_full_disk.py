"""A disk that really fills is named before it is full: file systems of a few pages' worth."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runners.adviser.adviser import advise_run
from runners.adviser.metric_lines import MetricLines
from runners.store.free_disk import measure_free_mb
from runners.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout

pytestmark = pytest.mark.integration
MB = 1_000_000
CONFIG_OF_A_LONG_RUN = {**CONFIG, "run": {"steps": 100}}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mount a disk, and give what sets its size in MB and returns its place."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> subprocess.CompletedProcess[bytes]:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        return subprocess.run(command, capture_output=True, check=False)

    def resize(size_mb: int) -> Path:
        mount(f"remount,size={size_mb * MB}").check_returncode()
        return place

    made = mount(f"size={MB}")
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    yield resize
    subprocess.run(["umount", "-l", str(place)], check=True)


def finish_step(store: RunStore, step: int) -> list[str]:
    """Finish a step as a campaign does; return the names of the alarms after it."""
    store.begin_step(step, ["task"])
    store.put_rollout(a_rollout(f"train-{step:06}-000-00"))
    store.finish_step(step, {"disk/free_mb": measure_free_mb(store.run_dir)})
    return [alarm.name for alarm in advise_run(store)]


def test_less_than_a_gigabyte_is_named_as_soon_as_it_is_left(disk: Callable[[int], Path]) -> None:
    run_dir = disk(1_150) / "run"
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


def test_a_disk_that_is_full_in_ten_steps_is_named_within_three(
    disk: Callable[[int], Path],
) -> None:
    """Another program takes the space: the file system becomes smaller with each step."""
    with RunStore.create(disk(6_000) / "run", CONFIG_OF_A_LONG_RUN) as store:
        assert [finish_step(store, step) for step in range(1, 5)] == [[]] * 4
        seen = []
        for step in range(5, 8):
            disk(6_000 - 900 * (step - 4))
            seen.append(finish_step(store, step))
        assert seen[-1] == ["full_disk"]
