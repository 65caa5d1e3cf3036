"""A full disk: the run ends with a message, nothing is corrupt, and it resumes with more space."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from tests.fakes.small_disk import SmallDisk, mount_small_disk
from tests.runners.campaigns.account import account, broken, differences
from tests.runners.campaigns.conftest import Miniature

pytestmark = pytest.mark.integration

TINY = [
    "run.steps=2", "run.tasks_per_step=2", "run.rollouts_per_task=2", "run.eval_tasks=2",
    "task.train_tasks=4", "task.held_out_tasks=2", "harness.max_turns=3",
    "sampling.max_new_tokens=48", "trainer.threads=1", "engine.threads=1",
]  # fmt: skip
SIZES_KB = (40, 200, 330, 440, 900, 2400, 2700, 4520, 4560)
"""Each is reached by another writer first: the store, the shared files of the sandboxes, sessions,
turns, the checkpoints, metrics and pictures.
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mount_small_disk(tmp_path / "disk") as mounted:
        yield mounted


@pytest.mark.slow
def test_a_disk_that_fills_up_pauses_the_run_and_more_room_finishes_it(
    miniature: Miniature, tmp_path: Path, disk: SmallDisk
) -> None:
    miniature.finish(miniature.begin(*TINY))
    with miniature.store() as store:
        wanted = account(store)
    miniature.run_dir = disk.place / "run"
    for size_kb in SIZES_KB:
        disk.resize(size_kb)
        process = miniature.resume() if has_run(miniature.run_dir) else miniature.begin(*TINY)
        document = miniature.finish(process, code=4)
        said = document.get("message") or document.get("error") or ""
        assert "disk is full" in said or "No space left" in said, (size_kb, said)
        if has_run(miniature.run_dir):
            with miniature.store() as store:
                assert store.query("PRAGMA integrity_check")[0][0] == "ok"
                assert broken(store, tmp_path / "dump") == []
                assert {r.outcome.outcome_class for r in store.rollouts(counts=True)} <= {
                    "policy", "budget"
                }, "a full disk is not a rollout's failure"  # fmt: skip
    disk.resize(100_000)
    miniature.finish(miniature.resume())
    with miniature.store() as store:
        assert differences(wanted, account(store)) == []


def has_run(run_dir: Path) -> bool:
    try:
        RunStore.open(run_dir, read_only=True).close()
    except StoreError:
        return False
    return True
