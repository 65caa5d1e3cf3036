"""Agents without isolation and the engine's key: never both."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.sections.section import ENGINE_KEY
from runners.sandboxes.contract import SandboxError
from runners.sandboxes.local.backend import LocalBackend
from tests.fakes.sandbox_backends import local_settings

pytestmark = pytest.mark.integration


def test_without_isolation_no_sandbox_is_made_beside_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENGINE_KEY, "secret-7")
    with pytest.raises(SandboxError, match=f"could read {ENGINE_KEY}") as refused:
        LocalBackend(local_settings(isolation="none"), tmp_path / "refused")
    assert "secret-7" not in str(refused.value)


async def test_without_a_key_it_is_made_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENGINE_KEY, raising=False)
    await LocalBackend(local_settings(isolation="none"), tmp_path / "made").close()
