"""Trees are copied and removed safely; small ones are copied into memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runners.sandboxes.local import backend
from runners.sandboxes.tree import copy_tree, remove_tree
from runners.system.processes.process_names import PREFIX, make_unique_name


def test_a_copy_has_contents_modes_and_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "big").write_bytes(os.urandom(200_000))
    (source / "script").write_text("x")
    (source / "script").chmod(0o755)
    (source / "empty").touch(0o400)
    (source / "inside").symlink_to("deep/er")
    (source / "outside").symlink_to("/etc/passwd")
    (source / "broken").symlink_to("nowhere")
    os.mkfifo(source / "fifo")
    copy_tree(source, target := tmp_path / "target")
    assert (target / "deep/er/big").read_bytes() == (source / "deep/er/big").read_bytes()
    assert (target / "script").stat().st_mode & 0o777 == 0o755
    assert (target / "empty").stat().st_mode & 0o777 == 0o600
    assert [str((target / n).readlink()) for n in ("inside", "outside", "broken")] == [
        "deep/er", "/etc/passwd", "nowhere",
    ]  # fmt: skip
    assert not (target / "fifo").exists()


def test_writing_the_copy_leaves_the_source_alone(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "pack").write_bytes(b"a" * 100_000)
    copy_tree(tmp_path / "source", tmp_path / "target")
    with (tmp_path / "target" / "pack").open("r+b") as file:
        file.write(b"b")
    assert (tmp_path / "source" / "pack").read_bytes() == b"a" * 100_000
    assert (tmp_path / "target" / "pack").stat().st_nlink == 1


def test_a_target_that_exists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    with pytest.raises(FileExistsError):
        copy_tree(tmp_path / "source", tmp_path / "target")


def test_removing_follows_no_link_and_ignores_modes(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    tree = tmp_path / "tree"
    (tree / "locked" / "in").mkdir(parents=True)
    (tree / "locked" / "in" / "file").touch(0)
    (tree / "link").symlink_to(kept)
    (tree / "locked" / "in").chmod(0)
    (tree / "locked").chmod(0)
    remove_tree(tree)
    remove_tree(tree)
    assert not tree.exists()
    assert (kept / "file").exists()


def test_only_a_small_source_is_copied_into_memory(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("x")
    assert backend.is_small(source)
    with (source / "large").open("wb") as file:
        file.truncate(backend.LARGEST_SOURCE + 1)
    assert not backend.is_small(source)


def test_directories_in_memory_of_a_killed_run_are_removed() -> None:
    if (ours := backend.claim_directory(make_unique_name())) is None:
        pytest.skip("no shared memory to execute from")
    namespace, _, started, number = make_unique_name().removeprefix(PREFIX).split("-")
    recycled = f"{PREFIX}{namespace}-{os.getpid()}-{int(started) - 1}-{number}"
    elsewhere = f"{PREFIX}{int(namespace) + 1}-{os.getpid()}-{int(started) - 1}-{number}"
    for name in (recycled, elsewhere):
        backend.claim_directory(name)
    backend.remove_stale_directories()
    try:
        assert ours.exists(), "its owner lives"
        assert not ours.with_name(recycled).exists(), "its owner's pid is another process's now"
        assert ours.with_name(elsewhere).exists(), "its owner's pid means nothing here"
    finally:
        for name in (ours.name, recycled, elsewhere):
            remove_tree(ours.with_name(name))
