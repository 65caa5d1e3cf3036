"""The published JSON schemas are those of the models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runners.campaigns import schema
from runners.observe.export.trajectory import Trajectory


def test_the_published_schemas_are_up_to_date() -> None:
    assert [path.name for path in schema.SCHEMAS] == [
        "trajectory.schema.json",
        "sft_messages.schema.json",
        "sft_tokens.schema.json",
        "report.schema.json",
    ]
    assert schema.outdated() == [], "run: python -m runners.campaigns.schema"


def test_the_command_checks_without_writing_and_writes_what_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "trajectory.schema.json"
    stale.write_text("{}")
    monkeypatch.setattr(schema, "SCHEMAS", {stale: Trajectory})
    monkeypatch.setattr(sys, "argv", ["schema", "--check"])
    assert schema.main() == 1
    assert (capsys.readouterr().out, stale.read_text()) == (
        "trajectory.schema.json is out of date\n",
        "{}",
    )
    monkeypatch.setattr(sys, "argv", ["schema"])
    assert schema.main() == 0
    assert schema.outdated() == []
