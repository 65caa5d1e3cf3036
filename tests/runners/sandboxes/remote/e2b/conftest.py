"""An E2B service on loopback, and a backend that uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from runners.sandboxes.remote.e2b import E2bBackend
from tests.fakes.e2b.box import boxes_work
from tests.fakes.e2b.server import E2bServer, e2b_server
from tests.fakes.sandbox_backends import api_key, e2b_settings


@pytest.fixture(autouse=True)
def _key() -> Iterator[None]:
    with api_key():
        yield


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[E2bServer]:
    if not boxes_work():
        pytest.skip("this machine cannot make the boxes that stand for E2B's machines")
    async with e2b_server(tmp_path / "boxes") as server:
        yield server


@pytest.fixture
def backend(server: E2bServer, tmp_path: Path) -> E2bBackend:
    return E2bBackend(e2b_settings(server), tmp_path / "driver")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("one\n")
    return source


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once; the waiting times are tested with the limits."""
    monkeypatch.setattr("runners.system.concurrency.limits.BACKOFF_S", 0.001)
