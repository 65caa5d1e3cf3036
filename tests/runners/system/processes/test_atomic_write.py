"""Files and directories are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.system.processes.atomic_write import atomic_directory, atomic_file
from runners.system.processes.process_names import make_unique_name


def stale_name() -> str:
    """Return a name of a process of this pid namespace that is gone."""
    head, pid, started, number = make_unique_name().rsplit("-", 3)
    return f"{head}-{pid}-{int(started) + 1}-{number}"


def test_files_that_killed_processes_left_half_written_are_removed(tmp_path: Path) -> None:
    stale = tmp_path / f".a[b].txt.{stale_name()}.partial"
    kept = [
        tmp_path / f".a[b].txt.{make_unique_name()}.partial",
        tmp_path / f".a[b].{stale_name()}.partial",
        tmp_path / ".a[b].txt.other.partial",
    ]
    for path in (stale, *kept):
        path.write_text("half")
    with atomic_file(tmp_path / "a[b].txt") as partial:
        partial.write_text("whole")
    assert {*tmp_path.iterdir()} == {*kept, tmp_path / "a[b].txt"}


def test_a_file_is_replaced_only_when_the_block_succeeds(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    with atomic_file(target) as partial:
        partial.write_text("one")
        assert not target.exists()
    with pytest.raises(ValueError, match="no number"), atomic_file(target) as partial:
        partial.write_text("half of tw" + str(int("no number")))
    assert target.read_text() == "one"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_cannot_be_written_raises_its_own_error(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError),
        atomic_file(tmp_path / "missing" / "file") as partial,
    ):
        partial.write_text("x")


def test_a_directory_appears_only_when_the_block_succeeds(tmp_path: Path) -> None:
    target = tmp_path / "entry"
    with pytest.raises(FileNotFoundError), atomic_directory(target) as partial:
        (partial / "missing" / "file").touch()
    assert list(tmp_path.iterdir()) == []
    with atomic_directory(target) as partial:
        (partial / "file").touch()
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["file"]


def test_the_directory_of_a_faster_process_stays(tmp_path: Path) -> None:
    target = tmp_path / "entry"
    with atomic_directory(target) as partial:
        (partial / "ours").touch()
        target.mkdir()
        (target / "theirs").touch()
    assert [path.name for path in target.iterdir()] == ["theirs"]
    assert list(tmp_path.iterdir()) == [target]


def test_half_built_directories_of_another_machine_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The initial pid namespace of every machine has the same number."""
    with monkeypatch.context() as other_machine:
        other_machine.setattr("socket.gethostname", lambda: "other")
        partial = tmp_path / f".entry.{stale_name()}"
    partial.mkdir()
    with atomic_directory(tmp_path / "entry"):
        assert partial.exists()


def test_half_built_directories_of_dead_processes_are_removed(tmp_path: Path) -> None:
    stale, living = tmp_path / f".entry.{stale_name()}", tmp_path / f".entry.{make_unique_name()}"
    stale.mkdir()
    living.mkdir()
    with atomic_directory(tmp_path / "entry"):
        assert not stale.exists()
        assert living.exists()
