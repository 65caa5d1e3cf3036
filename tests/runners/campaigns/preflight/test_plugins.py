"""Plug-ins of installed packages, as they are listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conf import targets
from runners.campaigns.preflight.plugins import list_offered


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that offers three names."""
    info = tmp_path / "mine-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.2\n")
    (info / "top_level.txt").write_text("mine\n")
    points = "brief = mine:Brief\ntests = mine:Tests\ngone = not_there:Reward\n"
    (info / "entry_points.txt").write_text(f"[agentrl.rewards]\n{points}")
    (tmp_path / "mine.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for cached in (targets.plugin_names, targets._distributions):
        cached.cache_clear()
    yield
    monkeypatch.undo()
    for cached in (targets.plugin_names, targets._distributions):
        cached.cache_clear()


@pytest.mark.usefixtures("package")
def test_what_is_offered_says_what_cannot_be_used() -> None:
    found = {each.name: each for each in list_offered()}
    assert (found["brief"].shadowed, found["tests"].shadowed) == (False, True)
    assert str(found["brief"].version).startswith("mine 1.2, sha256:")
    assert found["gone"].version is None
