"""Checkpoints of a job: as many as the configuration keeps, and the best one."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.campaigns.slime.checkpoints import NEWEST, remove_old_checkpoints


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the folder of a job that saved steps 2, 4, …, 10 and has begun to save step 12."""
    for step in (2, 4, 6, 8, 10, 12):
        part = tmp_path / f"iter_{step - 1:07d}" / "mp_rank_00"
        part.mkdir(parents=True)
        (part / "weights").write_bytes(b"w")
    (tmp_path / "rollout").mkdir()
    (tmp_path / NEWEST).write_text("9")
    return tmp_path


def left(root: Path) -> list[int]:
    return sorted(int(path.name[5:]) + 1 for path in root.glob("iter_*"))


def test_the_newest_and_the_one_under_way_stay(root: Path) -> None:
    assert remove_old_checkpoints(root, keep=2, rates={}) == [2, 4, 6]
    assert left(root) == [8, 10, 12]
    assert (root / "rollout").is_dir()
    assert remove_old_checkpoints(root, keep=2, rates={}) == []


def test_the_best_stays_the_earliest_of_equals(root: Path) -> None:
    rates = {0: 0.9, 2: 0.5, 3: 0.8, 4: 0.6, 6: 0.6, 10: 0.1}
    assert remove_old_checkpoints(root, keep=1, rates=rates) == [2, 6, 8]
    assert left(root) == [4, 10, 12]


@pytest.mark.parametrize("content", ["release", "", None])
def test_nothing_is_deleted_before_a_checkpoint_is_whole(root: Path, content: str | None) -> None:
    (root / NEWEST).unlink()
    if content is not None:
        (root / NEWEST).write_text(content)
    assert remove_old_checkpoints(root, keep=1, rates={}) == []
    assert len(left(root)) == 6
    assert remove_old_checkpoints(root / "none", keep=1, rates={}) == []
