"""A group of sandboxes packs its source once, and never starts from what has changed since."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.remote.archive_cache import ArchiveCache, fingerprint
from runners.sandboxes.remote.long_script import START
from runners.sandboxes.remote.sandbox import RemoteSandbox
from runners.sandboxes.remote.setup import ARCHIVE


class Recorder:
    """A machine that keeps the archives written to it."""

    def __init__(self) -> None:
        self.archives: list[bytes] = []

    async def run_script(self, script: str, *, deadline_s: float) -> bytes:
        return START + b"0\n\n\n"

    async def write_file(self, path: str, content: bytes | Path) -> None:
        if path == ARCHIVE:
            assert isinstance(content, Path)
            self.archives.append(content.read_bytes())

    async def read_file(self, path: str, target: Path) -> None:
        raise NotImplementedError

    async def terminate(self) -> None:
        return


def packer(packed: list[Path], size: int = 10) -> Callable[[Path], None]:
    """Return a function that makes an archive and remembers that it did."""

    def pack(path: Path) -> None:
        packed.append(path)
        path.write_bytes(bytes(size))

    return pack


@pytest.fixture
def cache(tmp_path: Path) -> ArchiveCache:
    return ArchiveCache(tmp_path / "archives", most_bytes=25)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / "source" / "deep" / "a.txt").write_text("one\n")
    return tmp_path / "source"


async def test_a_group_starts_from_one_archive(source: Path, tmp_path: Path) -> None:
    machine, cache = Recorder(), ArchiveCache(tmp_path / "archives")
    (program := tmp_path / "program").write_text("1")

    async def start(name: str) -> None:
        spec = SandboxSpec(name, source, "none", mounts={"/opt/x": program})
        await RemoteSandbox(spec, machine, tmp_path, cache).open()

    await asyncio.gather(*(start(f"g{number}") for number in range(4)))
    assert machine.archives == machine.archives[:1] * 4
    (source / "deep" / "a.txt").write_text("two\n")
    await start("later")
    program.write_text("2")
    await start("last")
    assert len(set(machine.archives)) == len(list((tmp_path / "archives").iterdir())) == 3


async def test_concurrent_users_wait_for_one_packing(cache: ArchiveCache) -> None:
    packed: list[Path] = []
    held = threading.Event()

    def pack(path: Path) -> None:
        held.wait(10)
        packer(packed)(path)

    async def use() -> Path:
        async with cache.use("one", pack) as path:
            return path

    users = [asyncio.ensure_future(use()) for _ in range(5)]
    await asyncio.sleep(0)
    held.set()
    assert len(set(await asyncio.gather(*users))) == 1
    assert len(packed) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("two\n"),
        lambda path: path.chmod(0o755),
        lambda path: (path.parent / "new").symlink_to("a.txt"),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_whatever_changes_in_a_tree_changes_its_fingerprint(
    source: Path, change: Callable[[Path], object]
) -> None:
    path, places = source / "deep" / "a.txt", [("/workspace", source)]
    info, before = path.stat(), fingerprint(places)
    assert fingerprint(places) == before
    change(path)
    # As programs do that restore times: the content has the same size and modification time.
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert fingerprint(places) != before
    assert fingerprint([("/testbed", source)]) != fingerprint(places)


async def test_old_archives_go_but_none_that_is_used(cache: ArchiveCache, tmp_path: Path) -> None:
    packed: list[Path] = []
    async with cache.use("used", packer(packed)):
        for name in ("a", "b", "a", "c"):
            async with cache.use(name, packer(packed)):
                pass
        kept = sorted(path.name for path in (tmp_path / "archives").iterdir())
        assert kept == ["a.tar.gz", "c.tar.gz", "used.tar.gz"]
    async with cache.use("large", packer(packed, size=100)) as path:
        assert path.stat().st_size == 100
    assert not list((tmp_path / "archives").glob("large*"))


async def test_a_packing_that_fails_or_is_cancelled_leaves_nothing(
    cache: ArchiveCache, tmp_path: Path
) -> None:
    held = threading.Event()
    packed: list[Path] = []

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        async with cache.use("one", fail):
            pass
    assert not list((tmp_path / "archives").iterdir())

    def pack_slowly(path: Path) -> None:
        held.wait(10)
        path.write_bytes(b"late")

    async def use() -> None:
        async with cache.use("one", pack_slowly):
            pass

    work = asyncio.ensure_future(use())
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    async with cache.use("one", packer(packed)) as path:
        held.set()
        assert path.read_bytes() == bytes(10)
    assert len(packed) == 1
