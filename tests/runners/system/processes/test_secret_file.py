"""A user's secret in a file."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runners.system.processes.secret_file import load_secret


def test_of_several_that_make_it_at_once_all_get_the_same(tmp_path: Path) -> None:
    for attempt in range(20):
        path = tmp_path / str(attempt) / "secret"
        with ThreadPoolExecutor(8) as pool:
            [secret] = set(pool.map(load_secret, [path] * 8))
        assert path.read_text() == secret
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [each.name for each in path.parent.iterdir()] == ["secret"]


def test_it_is_made_on_a_file_system_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # as FAT answers

    monkeypatch.setattr("os.link", refuse)
    path = tmp_path / "secret"
    assert load_secret(path) == load_secret(path) == path.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize(("text", "mode"), [("", 0o600), ("x" * 30, 0o644)])
def test_what_is_no_secret_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ValueError, match="no secret"):
        load_secret(path)
