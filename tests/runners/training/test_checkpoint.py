"""Checkpoints under kills and full disks: complete or absent."""

from __future__ import annotations

import itertools
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conf.errors import ExitCode
from runners.records.checkpoints import (
    BEST,
    Checkpoint,
    CheckpointError,
    find_best,
    find_latest,
    link_best,
    remove_old,
)
from runners.training import checkpoint
from runners.training.local import LocalTrainer
from runners.training.policy import load_policy
from tests.fakes.local_trainer import VOCAB, make_trainer
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny policy."""
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


class Killed(BaseException):
    """A kill of the process: no code of it runs afterwards."""


class Killer:
    """Raises at the n-th operation on files below a directory; Python reports them all to it."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.left = 0
        sys.addaudithook(self._hear)

    @contextmanager
    def strikes(self, folder: Path, after: int) -> Iterator[None]:
        """Strike within the block, after so many operations."""
        self.folder, self.left = str(folder), after
        try:
            yield
        finally:
            self.folder = None

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.folder is None or not event.startswith(("open", "os.", "shutil.")):
            return
        if any(str(argument).startswith(self.folder) for argument in arguments):
            self.left -= 1
            if self.left < 0:
                raise Killed


def whole(root: Path) -> dict[str, dict[str, int]]:
    """Return what looks like a complete checkpoint, with its files and their sizes."""
    return {
        place.name: {file.name: file.stat().st_size for file in place.iterdir()}
        for place in root.glob("step-*")
        if place.suffix != ".partial"
    }


def save(
    trainer: LocalTrainer,
    root: Path,
    step: int,
    *,
    keep: int = 2,
    best: Checkpoint | None = None,
) -> None:
    """Save a step as a campaign does."""
    checkpoint.save(trainer, root, step=step, state={})
    remove_old(root, keep=keep, best=best)


def test_at_no_instant_of_a_save_can_a_kill_leave_half_a_checkpoint(
    weights: Path, tmp_path: Path
) -> None:
    trainer, killer = make_trainer(weights), Killer()
    before = tmp_path / "before"
    for step in (1, 2):
        save(trainer, before, step)
    files = whole(before)["step-000001"]
    for instant in itertools.count():
        root = tmp_path / str(instant)
        shutil.copytree(before, root)
        try:
            with killer.strikes(root, instant):
                save(trainer, root, 3)
        except Killed:
            assert all(found == files for found in whole(root).values())
            newest = find_latest(root)
            assert newest is not None
            assert newest.step in (2, 3)
            save(trainer, root, 3)  # the resume
            assert sorted(path.name for path in root.iterdir()) == ["step-000002", "step-000003"]
        else:
            break
        shutil.rmtree(root)
    assert instant > 10


def test_the_best_checkpoint_is_kept_beside_the_newest_and_can_be_loaded(
    weights: Path, tmp_path: Path
) -> None:
    trainer, rates = make_trainer(weights), {0: 0.9, 1: 0.5, 2: 0.8, 3: 0.8, 5: 0.1}
    for step in range(1, 6):
        best = find_best(tmp_path, {s: rates[s] for s in rates if s < step})
        save(trainer, tmp_path, step, keep=1, best=best)
    best = find_best(tmp_path, rates)
    assert best is not None
    assert best.step == 2, "of equals the earliest; the starting policy has no checkpoint"
    assert sorted(whole(tmp_path)) == ["step-000002", "step-000005"]
    link_best(tmp_path, best)
    load_policy(tmp_path / BEST)
    assert (tmp_path / BEST).readlink() == Path("step-000002"), "the run may be moved"


def test_without_evaluations_there_is_no_best_checkpoint(weights: Path, tmp_path: Path) -> None:
    for step in (1, 2):
        save(make_trainer(weights), tmp_path, step, keep=1)
    assert find_best(tmp_path, {}) is None
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]


def test_at_no_instant_does_the_best_link_lead_nowhere(weights: Path, tmp_path: Path) -> None:
    trainer, killer = make_trainer(weights), Killer()
    before = tmp_path / "before"
    for step in (1, 2):
        save(trainer, before, step)
    link_best(before, Checkpoint(before / "step-000001", 1))

    def keep_best(root: Path) -> None:
        best = find_best(root, {1: 0.5, 2: 0.6})
        assert best is not None
        link_best(root, best)
        remove_old(root, keep=1, best=best)

    for instant in itertools.count():
        root = tmp_path / str(instant)
        shutil.copytree(before, root, symlinks=True)
        try:
            with killer.strikes(root, instant):
                keep_best(root)
        except Killed:
            assert (root / BEST).resolve().name in whole(root)
            keep_best(root)  # the resume
        assert (root / BEST).resolve().name == "step-000002"
        assert sorted(whole(root)) == ["step-000002"]
        if killer.left >= 0:
            break
    assert instant > 4


def test_a_checkpoint_that_cannot_be_written_leaves_a_run_to_resume(
    weights: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(weights)
    save(trainer, tmp_path, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write.*step-000002") as caught:
            save(trainer, tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.exit_code == ExitCode.SERVICE_GONE
    assert list(whole(tmp_path)) == [path.name for path in tmp_path.iterdir()] == ["step-000001"]
