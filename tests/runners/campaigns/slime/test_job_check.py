"""The check of a job before it trains: one turn of its agent program."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.compose import compose, to_json
from conf.errors import ExitCode
from runners.campaigns.slime.job import main
from runners.records.tokenizer import write_tiny_tokenizer
from runners.system.processes.ports import free_port

pytestmark = pytest.mark.integration


def run_of(tmp_path: Path, *overrides: str) -> str:
    """Lay out a run's directory."""
    tokenizer = write_tiny_tokenizer(tmp_path / "tokenizer")
    config = compose([f"model.tokenizer='{tokenizer}'", *overrides])
    (tmp_path / "config.json").write_text(to_json(config))
    return str(tmp_path)


def test_the_agent_program_takes_a_turn_before_a_job_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", run_of(tmp_path)]) == 0
    assert "harness=native has taken a turn in a sandbox" in capsys.readouterr().err
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "tokenizer"}


def test_a_public_url_that_leads_nowhere_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port, other = free_port("127.0.0.1"), free_port("127.0.0.1")
    astray = [f"gateway.port={port}", f"gateway.public_url=http://127.0.0.1:{other}"]
    code = main(["check", run_of(tmp_path, "sandbox.isolation=none", *astray)])
    said = capsys.readouterr().err
    assert code == ExitCode.PREFLIGHT, said
    assert "harness=native took 0 turns" in said
