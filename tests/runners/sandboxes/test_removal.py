"""Whatever an agent leaves is removed or set aside, and never an error of a later run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.sandboxes import tree
from runners.sandboxes.removal import Removal
from runners.sandboxes.tree import clear_directory, discard_tree, remove_tree

DEEP = 1200
LIBRARY = "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True)"
REMOVE = f"""
{LIBRARY}
from pathlib import Path
from runners.sandboxes.tree import discard_tree
discard_tree(Path(sys.argv[1]), Path(sys.argv[1]).parent)
"""


def make_deep(path: Path, levels: int, name: str = "d") -> None:
    """Make directories in each other, deeper than any path can name."""
    path.mkdir()
    handle = os.open(path, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=handle)
        inner = os.open(name, os.O_RDONLY, dir_fd=handle)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0, dir_fd=inner))
        os.close(handle)
        handle = inner
    os.close(handle)


@pytest.mark.parametrize(("levels", "name"), [(DEEP, "d"), (60, "x" * 255)])
def test_a_tree_deeper_than_any_path_is_removed(tmp_path: Path, levels: int, name: str) -> None:
    make_deep(tmp_path / "tree", levels, name)
    remove_tree(tmp_path / "tree")
    assert not any(tmp_path.iterdir())


def test_locked_directories_odd_names_and_special_files_are_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a/b/c").mkdir(parents=True)
    os.mkfifo(tree / "a/fifo")
    (tree / os.fsdecode(b"\xff\xfe\n")).mkdir()
    (tree / "a/loop").symlink_to("loop")
    (tree / "a/b/c/file").touch(0)
    for path in ("a/b/c", "a/b", "a", "."):
        (tree / path).chmod(0)
    remove_tree(tree)
    remove_tree(tree)
    assert not any(tmp_path.iterdir())


def test_directories_that_look_like_our_own_names_are_removed(tmp_path: Path) -> None:
    removal = Removal(tmp_path / "tree")
    for number in range(3):
        (tmp_path / "tree" / f"{removal._prefix}{number}" / "in").mkdir(parents=True)
        (tmp_path / "tree" / "in" / f"{removal._prefix}{number}" / "in").mkdir(parents=True)
    with pytest.raises(OSError, match="not empty"):
        removal.run()
    remove_tree(tmp_path / "tree")  # with another prefix
    assert not any(tmp_path.iterdir())


def test_what_links_lead_to_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir(0o755)
    (tmp_path / "kept/file").touch(0o644)
    (tmp_path / "tree/in").mkdir(parents=True)
    (tmp_path / "tree/link").symlink_to(tmp_path / "kept")
    (tmp_path / "tree/in/file").symlink_to(tmp_path / "kept/file")
    os.link(tmp_path / "kept/file", tmp_path / "tree/hard")
    (tmp_path / "top").symlink_to(tmp_path / "kept")
    (tmp_path / "tree/in").chmod(0)
    remove_tree(tmp_path / "tree")
    remove_tree(tmp_path / "top")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept/file").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o755


@pytest.mark.integration
def test_a_large_tree_is_removed_by_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "OWN_PROCESS", 10)
    make_deep(tmp_path / "tree", 50)
    assert not Removal(tmp_path / "tree", 10).run(), "it stops at the limit"
    remove_tree(tmp_path / "tree")
    assert not any(tmp_path.iterdir())


def test_a_directory_that_can_only_be_moved_is_set_aside_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Removal) -> bool:
        raise PermissionError(1, "Operation not permitted", "stuck")

    monkeypatch.setattr(Removal, "run", refuse)
    (tmp_path / "root").mkdir()
    assert clear_directory(tmp_path / "root") == tmp_path / "root"
    (left,) = (path for path in tmp_path.iterdir() if path.name != "root")
    assert left.name.startswith(".agentrl-left-")
    warning = capsys.readouterr().err
    assert str(left) in warning
    assert "stuck" in warning
    assert warning.count("WARNING") == 1


# --- as root, in a mount namespace of its own ----------------------------------------------------


def run_apart(program: str, tree: Path, *wrap: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a mount namespace of its own, as root."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("only root can make these")
    apart = ["unshare", "--mount", "--propagation", "private", *wrap]
    command = [*apart, sys.executable, "-c", program, str(tree)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3]
    )


MOUNT = """
def mount(source, target, kind, flags):
    if libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, None):
        sys.exit("cannot mount: %s" % os.strerror(ctypes.get_errno()))
"""


@pytest.mark.integration
def test_mounts_are_detached_and_what_is_behind_them_is_kept(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host/file").write_text("the host's")
    (tmp_path / "tree/a/bound").mkdir(parents=True)
    (tmp_path / "tree/a/file").touch()
    (tmp_path / "tree/memory").mkdir()
    prepare = f"""
tree = sys.argv[1]
mount({str(tmp_path / "host")!r}, tree + "/a/bound", "none", 4096)
mount({str(tmp_path / "host/file")!r}, tree + "/a/file", "none", 4096)
mount("x", tree + "/memory", "tmpfs", 0)
mount("x", tree + "/memory", "tmpfs", 0)
os.mkdir(tree + "/memory/in")
mount("x", tree, "tmpfs", 0)
"""
    done = run_apart(f"{LIBRARY}{MOUNT}{prepare}{REMOVE}", tmp_path / "tree")
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["host"]
    assert (tmp_path / "host/file").read_text() == "the host's"


@pytest.mark.integration
def test_a_mount_that_cannot_be_detached_is_never_emptied(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host/file").write_text("the host's")
    (tmp_path / "host").chmod(0o1755)
    (tmp_path / "tree/a/bound").mkdir(parents=True)
    (tmp_path / "tree/other").mkdir()
    prepare = f"""
mount({str(tmp_path / "host")!r}, sys.argv[1] + "/a/bound", "none", 4096)
drop = ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", {REMOVE!r}, sys.argv[1]]
os.execvp("setpriv", drop)
"""
    done = run_apart(f"{LIBRARY}{MOUNT}{prepare}", tmp_path / "tree")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("WARNING") == 1
    assert (tmp_path / "host/file").read_text() == "the host's"
    assert (tmp_path / "host").stat().st_mode & 0o7777 == 0o1755
    assert not (tmp_path / "tree").exists(), "it is set aside"


CLEAR = """
from pathlib import Path
from runners.sandboxes import tree
from runners.sandboxes.tree import clear_directory
for _ in range(2):
    place = clear_directory(Path(sys.argv[1]))
    (place / "new").touch()
    print(place.name, *(path.name for path in place.iterdir()))
"""


@pytest.mark.integration
def test_a_mount_that_cannot_be_moved_gives_the_directory_another_name_with_one_warning(
    tmp_path: Path,
) -> None:
    (tmp_path / "tree").mkdir()
    prepare = f"""
mount("none", sys.argv[1], "tmpfs", 0)
open(sys.argv[1] + "/file", "w").close()
program = {LIBRARY + CLEAR!r}
drop = ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", program, sys.argv[1]]
os.execvp("setpriv", drop)
"""
    done = run_apart(f"{LIBRARY}{MOUNT}{prepare}", tmp_path / "tree")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["tree-2 new", "tree-2 new"]
    assert done.stderr.count("WARNING") == 1
    done = run_apart(f"{LIBRARY}{CLEAR}", tmp_path / "tree")
    assert done.stdout.splitlines() == ["tree new", "tree new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree", "tree-2"]


GROUPS = """
from pathlib import Path
from runners.sandboxes.local.confinement import PidsControlGroup
mount("none", "/sys/fs/cgroup", "tmpfs", 0)
print(PidsControlGroup.create(sys.argv[1], 9), *Path("/sys/fs/cgroup").rglob("*"))
"""


@pytest.mark.integration
def test_a_directory_that_is_no_hierarchy_gets_no_control_groups(tmp_path: Path) -> None:
    done = run_apart(f"{LIBRARY}{MOUNT}{GROUPS}", Path("agentrl-test"))
    assert (done.stdout.strip(), done.stderr) == ("None", "")


def chattr(flags: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        done = subprocess.run(["chattr", flags, str(path)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no chattr here: {done.stderr.decode()}")

    return change


@pytest.fixture
def protected(tmp_path: Path) -> Path:
    """A tree with flags that even root obeys, at every level."""
    if os.geteuid() or not shutil.which("chattr"):
        pytest.skip("only root can set the flags")
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/file").touch(0)
    (tree / "a/log").touch()
    for path, flags in (("a/b/file", "+i"), ("a/log", "+a"), ("a/b", "+a"), ("a", "+i")):
        chattr(flags)(tree / path)
    return tree


@pytest.mark.integration
def test_immutable_and_append_only_entries_are_removed(protected: Path) -> None:
    chattr("+i")(protected)
    remove_tree(protected)
    assert not any(protected.parent.iterdir())


def look(directory: Path) -> tuple[int, int, int, str]:
    """Return mode, owner, group and flags of a directory."""
    info = directory.stat()
    flags = subprocess.run(["lsattr", "-d", directory], capture_output=True, text=True, check=True)
    return info.st_mode, info.st_uid, info.st_gid, flags.stdout


@pytest.mark.integration
@pytest.mark.parametrize("flag", ["+i", "+a"])
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_the_directory_that_holds_a_protected_top_stays_as_it_is(
    tmp_path: Path, flag: str, kind: str
) -> None:
    holder = tmp_path / "holder"
    holder.mkdir()
    os.chown(holder, 4321, 4321) if os.geteuid() == 0 else pytest.skip("only root sets flags")
    holder.chmod(0o1777)
    chattr("+d")(holder)  # a flag that is none of ours to clear
    (holder / "top").mkdir() if kind == "directory" else (holder / "top").touch()
    chattr(flag)(holder / "top")
    before = look(holder)
    discard_tree(holder / "top", holder)
    assert look(holder) == before
    assert not any(holder.iterdir())


@pytest.mark.integration
@pytest.mark.parametrize("dropped", ["-linux_immutable", "-linux_immutable,-dac_override"])
def test_the_directory_that_holds_a_top_stays_as_it_is_where_the_top_cannot_be_freed(
    tmp_path: Path, dropped: str
) -> None:
    (tmp_path / "holder/top").mkdir(parents=True)
    if os.geteuid():
        pytest.skip("only root sets flags")
    holder = tmp_path / "holder"
    os.chown(holder, 4321, 4321)
    holder.chmod(0o1777)
    chattr("+i")(holder / "top")
    before = look(holder)
    try:
        run_apart(REMOVE, holder / "top", "setpriv", f"--bounding-set={dropped}")
        assert look(holder) == before
    finally:
        for left in holder.iterdir():
            chattr("-i")(left)


@pytest.mark.integration
def test_a_driver_that_may_not_clear_the_flags_sets_the_tree_aside(protected: Path) -> None:
    done = run_apart(REMOVE, protected, "setpriv", "--bounding-set=-linux_immutable")
    try:
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("WARNING") == 1
        assert not protected.exists()
    finally:
        for left in protected.parent.iterdir():
            remove_tree(left)
    assert not any(protected.parent.iterdir())


@pytest.mark.integration
@pytest.mark.parametrize("dropped", ["-dac_override,-dac_read_search", "-dac_override,-chown"])
def test_another_users_locked_files_are_removed_without_the_right_to_override_modes(
    tmp_path: Path, dropped: str
) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    (tmp_path / "tree/a/b").mkdir(parents=True)
    (tmp_path / "tree/a/b/file").touch(0)
    for path in (tmp_path / "tree").rglob("*"):
        os.chown(path, 4321, 4321)
        if path.is_dir():
            path.chmod(0)
    done = run_apart(REMOVE, tmp_path / "tree", "setpriv", f"--bounding-set={dropped}")
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(tmp_path.iterdir())


def test_discarding_what_is_gone_is_no_error(tmp_path: Path) -> None:
    discard_tree(tmp_path / "none", tmp_path)
    discard_tree(tmp_path / "no/parent", tmp_path)
