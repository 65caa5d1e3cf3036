"""``view``: the address that it prints, the file that it writes, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import ENVIRONMENT, Agentrl
from tests.fakes.records import example_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    example_run(tmp_path / "run").close()
    return tmp_path / "run"


def test_the_page_is_written_as_one_file(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("view", str(run_dir), "--out", "page.html")
    assert (done.code, done.stdout) == (0, "page.html\n")
    assert Path("page.html").read_text("utf-8").count('class="rollout"') == 4
    assert sorted(path.name for path in Path().iterdir()) == ["page.html", "run"]


def test_options_that_do_not_go_together_are_an_error(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("view", str(run_dir), "--out", "page.html", "--port", "1")
    assert (done.code, "drop them" in done.stderr) == (2, True)
    assert agentrl("view", "missing").code == 5
    done = agentrl("view", str(run_dir), "train-000001-00-00", "--out", "page.html")
    assert (done.code, "ROLLOUT" in done.stderr) == (2, True)
    done = agentrl("view", str(run_dir), "train-000001-00-09")
    assert (done.code, "there is no rollout train-000001-00-09" in done.stderr) == (2, True)


def test_it_serves_until_it_is_interrupted(run_dir: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cli.main",
            "view",
            str(run_dir),
            "train-000001-00-00",
            "--port",
            "0",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.endswith("/#train-000001-00-00")
        with urllib.request.urlopen(address) as response:
            assert b"main.js" in response.read()
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait() == 0
