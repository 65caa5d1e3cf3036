"""Archives from an agent are unpacked safely; archives for it name nobody of the host."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from runners.sandboxes.contract import OversizedError, SandboxError
from runners.sandboxes.remote import archive
from runners.sandboxes.remote.archive import ArchiveWriter, unpack
from runners.sandboxes.remote.machine import AGENT_ID
from runners.sandboxes.tree import remove_tree


def member(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", size: int = 0) -> object:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


def unpack_members(tmp_path: Path, *members: object, content: bytes = b"") -> Path:
    """Unpack a tar file with these members into ``tmp_path/target``."""
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for info in members:
            assert isinstance(info, tarfile.TarInfo)
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    target = tmp_path / "target"
    target.mkdir()
    unpack(tmp_path / "a.tar.gz", target)
    return target


@pytest.mark.parametrize(
    "members",
    [
        [member("../outside")],
        [member("a/../../outside")],
        [member("/outside")],
        [member("out", tarfile.SYMTYPE, link=".."), member("out/outside")],
        [
            member("deep", tarfile.DIRTYPE),
            member("deep/up", tarfile.SYMTYPE, link="../.."),
            member("deep/up/outside"),
        ],
        [member("outside", tarfile.LNKTYPE, link="../secret")],
        [
            member("out", tarfile.SYMTYPE, link=".."),
            member("x", tarfile.LNKTYPE, link="out/secret"),
        ],
    ],
)
def test_nothing_leads_out_of_the_target(tmp_path: Path, members: list[object]) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(SandboxError, match=r"leads out of it|through a link"):
        unpack_members(tmp_path, *members)
    assert not (tmp_path / "outside").exists()
    made = [path for path in tmp_path.glob("target/*") if path.is_file()]
    assert not any("secret" in path.read_text() for path in made)


def test_a_file_is_not_written_through_a_link_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    with pytest.raises(SandboxError):
        unpack_members(tmp_path, member("x", tarfile.SYMTYPE, link="../victim"), member("x"))
    assert (tmp_path / "victim").read_text() == "mine"


def test_devices_and_pipes_are_left_out(tmp_path: Path) -> None:
    kinds = (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)
    target = unpack_members(
        tmp_path, *(member(f"x{number}", kind) for number, kind in enumerate(kinds))
    )
    assert list(target.iterdir()) == []


def test_a_workspace_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "UNPACKED_LIMIT", 4 * 512)  # headers count, and are cut off too
    with pytest.raises(SandboxError, match="more than"):
        unpack_members(tmp_path, member("a", size=6), member("b", size=6), content=b"x" * 6)


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"some" * 10_000)
    with ArchiveWriter(tmp_path / "whole") as writer:
        writer.add_writable("/workspace", tmp_path / "tree")
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:100])
    (tmp_path / "target").mkdir()
    with pytest.raises(SandboxError, match="cannot be unpacked"):
        unpack(tmp_path / "cut", tmp_path / "target")


def test_a_packed_tree_names_no_user_of_the_host(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "locked").write_text("x")
    (tree / "locked").chmod(0o400)
    (tree / "program").write_text("x")
    (tree / "program").chmod(0o777)
    with ArchiveWriter(tmp_path / "packed") as writer:
        writer.add_writable("/workspace", tree)
        writer.add_readonly("/opt/tree", tree)
    with tarfile.open(tmp_path / "packed") as tar:
        found = {info.name: info for info in tar}
    assert {(info.uname, info.gname) for info in found.values()} == {("", "")}
    assert {info.uid for name, info in found.items() if "work" in name} == {AGENT_ID}
    assert {info.uid for name, info in found.items() if "opt" in name} == {0}
    assert found["workspace/locked"].mode == 0o600
    assert found["workspace/program"].mode == 0o777
    assert found["opt/tree/program"].mode == 0o555
    assert found["opt/tree/locked"].mode == 0o444


@pytest.mark.parametrize("name", ["x" * 300, "d/" * 3000 + "x"])
def test_names_that_are_too_long_here_are_the_agents_doing(tmp_path: Path, name: str) -> None:
    with pytest.raises(OversizedError, match="File name too long"):
        unpack_members(tmp_path, member(name))
    remove_tree(tmp_path / "target")  # pytest could not


def test_a_workspace_of_too_many_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MEMBERS", 3)
    with pytest.raises(OversizedError, match="3 files"):
        unpack_members(tmp_path, *(member(f"f{number}") for number in range(4)))
