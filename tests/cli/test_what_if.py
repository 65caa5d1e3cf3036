"""``agentrl what-if``: the table at 80 columns, the document, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cli.what_if import _render
from runners.campaigns.what_if.figures import RuleFigures
from runners.campaigns.what_if.what_if import StepComparison, WhatIf
from tests.cli.conftest import Agentrl
from tests.fakes.trained_run import train_run

Golden = Callable[[str, str], None]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    train_run(tmp_path / "run").close()
    return tmp_path / "run"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_shows_both_rules_and_fits_the_terminal(
    width: int, agentrl: Agentrl, run_dir: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = agentrl("what-if", str(run_dir), "fanout=collapse", "trainer.advantage=rloo")
    assert done.code == 0
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert max(map(len, lines)) <= width
    golden(f"what-if-{width}.txt", "\n".join(lines) + "\n")


def test_figures_of_a_million_tokens_in_a_thousand_groups_are_not_cut_at_80_columns() -> None:
    figures = RuleFigures(
        rollouts=8_192,
        graded=8_192,
        reward_sum=-1_234.5,
        groups=1_600,
        groups_with_gradient=1_240,
        tokens_trained=9_154_290,
        tokens_up=6_000_000,
        tokens_down=3_154_290,
        weight_up=0.0004,
        weight_down=0.000381,
    )
    turned = [f"train-{number:06}-00-00" for number in range(8_192)]
    found = WhatIf("run", {}, [StepComparison(1_000, figures, figures, turned)])
    console = Console(width=80, file=StringIO())
    console.print(_render(found))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown
    for cell in ("-0.151", "1,240/1,600", "9,154,290", "0.000781", "8,192"):
        assert cell in shown


def test_damaged_turns_are_named_without_blame_for_other_rules(
    agentrl: Agentrl, run_dir: Path
) -> None:
    (run_dir / "arrays" / "turns.bin").write_bytes(b"")
    done = agentrl("what-if", str(run_dir))
    assert done.code == 1
    assert "failures, the first of train-000001" in " ".join(done.stdout.split())
    assert "turns.bin" in done.stdout
    assert "rollouts are stored otherwise" in done.stdout


def test_the_document_has_the_sums_of_every_step(agentrl: Agentrl, run_dir: Path) -> None:
    found = json.loads(agentrl("what-if", str(run_dir), "fanout=collapse", "--json").stdout)
    assert found["exit_code"] == 0
    assert found["changed"]["fanout.kind"] == ["segments", "collapse"]
    for side in ("before", "after"):
        for name in ("tokens_trained", "tokens_up", "groups", "rollouts"):
            assert found["total"][side][name] == sum(step[side][name] for step in found["steps"])


def test_a_key_without_an_answer_is_a_usage_error(agentrl: Agentrl, run_dir: Path) -> None:
    done = agentrl("what-if", str(run_dir), "trainer.learning_rate=0.1", "--json")
    assert done.code == 2
    assert "trainer.learning_rate" in json.loads(done.stdout)["error"]


def test_what_a_reward_prints_is_beside_the_document(
    agentrl: Agentrl, run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "def loud(result):\n    print('a reward was here')\n    return 1.0\n"
    )
    done = agentrl("what-if", str(run_dir), "reward=mine.py:loud", "--json")
    assert json.loads(done.stdout)["exit_code"] == done.code
    assert "a reward was here" in done.stderr
