"""Agents without isolation and the key of a server: never both."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.sections.section import SERVER_KEYS
from runners.sandboxes.contract import SandboxError
from runners.sandboxes.local.backend import LocalBackend
from tests.fakes.sandbox_backends import local_settings

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("key", SERVER_KEYS)
def test_without_isolation_no_sandbox_is_made_beside_a_key(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(key, "secret-7")
    with pytest.raises(SandboxError, match=f"could read {key}") as refused:
        LocalBackend(local_settings(isolation="none"), tmp_path / "refused")
    assert "secret-7" not in str(refused.value)


async def test_without_a_key_it_is_made_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in SERVER_KEYS:
        monkeypatch.delenv(key, raising=False)
    await LocalBackend(local_settings(isolation="none"), tmp_path / "made").close()
