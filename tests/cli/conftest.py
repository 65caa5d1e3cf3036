"""Run ``agentrl`` in this process or in one of its own; compare golden files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.main import main

REPOSITORY = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"

ENVIRONMENT = {
    **{"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"},
    "PYTHONPATH": str(REPOSITORY),  # for child processes, where agentrl is not installed
}


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a call of ``agentrl``."""

    code: int
    stdout: str
    stderr: str


Agentrl = Callable[..., Ended]


@pytest.fixture
def agentrl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Agentrl:
    """Run ``agentrl ARGS…`` in this process, in an empty directory, without a terminal."""
    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return Ended(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def agentrl_process(tmp_path: Path) -> Agentrl:
    """Run ``agentrl ARGS…`` as a process of its own, in an empty directory, without a terminal."""

    def run(*arguments: str, options: tuple[str, ...] = (), **environment: str) -> Ended:
        done = subprocess.run(
            [sys.executable, *options, "-m", "cli.main", *arguments],
            cwd=tmp_path,
            env={**os.environ, **ENVIRONMENT, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

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
