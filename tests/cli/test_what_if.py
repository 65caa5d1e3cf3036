"""``agentrl what-if``: the table at 80 columns, the document, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Agentrl
from tests.fakes.trained_run import train_run

Golden = Callable[[str, str], None]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    train_run(tmp_path / "run").close()
    return tmp_path / "run"


def test_the_table_shows_both_rules_and_fits_a_terminal_of_80_columns(
    agentrl: Agentrl, run_dir: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = agentrl("what-if", str(run_dir), "fanout=collapse", "trainer.advantage=rloo")
    assert done.code == 0
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert max(map(len, lines)) <= 80
    golden("what-if-80.txt", "\n".join(lines) + "\n")


def test_the_document_has_the_sums_of_every_step(agentrl: Agentrl, run_dir: Path) -> None:
    found = json.loads(agentrl("what-if", str(run_dir), "fanout=collapse", "--json").stdout)
    assert found["exit_code"] == 0
    assert found["changed"]["fanout.kind"] == ["segments", "collapse"]
    for side in ("before", "after"):
        for name in ("tokens_trained", "tokens_up", "groups", "rollouts"):
            assert found["total"][side][name] == sum(step[side][name] for step in found["steps"])


def test_a_store_that_is_not_reproduced_has_exit_code_1(agentrl: Agentrl, tmp_path: Path) -> None:
    with train_run(tmp_path / "run") as store:
        record = next(r for r in store.rollouts(split="train") if r.advantage)
        store.put_rollout(replace(record, advantage=0.125))
    done = agentrl("what-if", str(tmp_path / "run"))
    assert done.code == 1
    assert "1 of 24 rollouts are stored otherwise" in done.stdout
    assert record.rollout_id in done.stdout


def test_a_key_without_an_answer_is_a_usage_error(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("what-if", str(run_dir), "trainer.learning_rate=0.1", "--json")
    assert done.code == 2
    assert "trainer.learning_rate" in json.loads(done.stdout)["error"]
