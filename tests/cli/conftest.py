"""``agentrl`` as a process of its own, and golden files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"

Agentrl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def agentrl(tmp_path: Path) -> Agentrl:
    """Run ``agentrl ARGS…`` in an empty directory, without a terminal."""

    def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        fixed = {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *args],
            cwd=tmp_path,
            env={**os.environ, **fixed, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a golden file, or write it with ``--update-golden``."""

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        text = "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"
        if request.config.getoption("--update-golden"):
            file.write_text(text, "utf-8")
        assert file.read_text("utf-8") == text

    return check
