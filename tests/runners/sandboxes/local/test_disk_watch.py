"""A sandbox that fills the disk is ended, whatever it hides the bytes in; no other is."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.sandboxes.contract import OversizedError, SandboxSpec
from runners.sandboxes.local import disk_watch
from runners.sandboxes.local.backend import LocalBackend
from tests.runners.sandboxes.conftest import Opener

pytestmark = pytest.mark.integration

MB = 1 << 20
FILLS = {
    "files": "for i in 1 2 3 4 5; do head -c 3M /dev/zero > f$i; done; sleep 100",
    "deleted": "exec 3>f; rm f; head -c 3M /dev/zero >&3; exec 4>g; rm g; head -c 3M /dev/zero >&4;"
    " sleep 100",
    "depth": "for i in $(seq 500); do mkdir d; cd d; done; sleep 100",
    "names": "for i in $(seq 2500); do : > $i; done; sleep 100",
}


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call any disk full, and blame whoever holds 5 MB."""
    monkeypatch.setattr(disk_watch, "LEAST_FREE", 1 << 62)
    monkeypatch.setattr(disk_watch, "LEAST_SHARE", 1.0)
    monkeypatch.setattr(disk_watch, "BLAMED", 5 * MB)
    monkeypatch.setattr(disk_watch, "AGAIN_S", 0.1)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("name", FILLS)
async def test_a_sandbox_that_holds_much_of_a_full_disk_is_ended(opened: Opener, name: str) -> None:
    async with opened() as sandbox:
        with pytest.raises(OversizedError, match="the disk is full, and the sandbox holds"):
            await sandbox.run(["bash", "-c", FILLS[name]], deadline_s=120)


@pytest.mark.usefixtures("full_disk")
async def test_one_that_holds_little_is_left_alone_and_so_is_a_large_repository(
    backend: LocalBackend, source: Path
) -> None:
    (source / "large").write_bytes(bytes(9 * MB))
    sandbox = await backend.create(SandboxSpec("small", source, "none"))
    try:
        result = await sandbox.run(["bash", "-c", "sleep 1; echo done"], deadline_s=120)
    finally:
        await sandbox.close()
    assert result.stdout == b"done\n"


def test_a_disk_with_space_is_not_full(tmp_path: Path) -> None:
    assert not disk_watch.is_nearly_full(tmp_path)
