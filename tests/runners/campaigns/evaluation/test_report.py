"""The table that compares evaluations."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from runners.campaigns.evaluation.report import render_comparison

INTERVAL = {"low": 0.25, "high": 0.75}


def an_evaluation(label: str, rate: float, attempts: int) -> dict[str, Any]:
    rates = [
        {
            "k": k,
            "value": rate * k,
            "tasks": 4,
            "interval": INTERVAL,
            "bootstrap": INTERVAL,
            "wilson": None,
        }
        for k in range(1, attempts + 1)
    ]
    counts = {"solved": 2, "valid": 4, "error": 1, "not_run": 2}
    return {"label": label, "exit_code": 0, "pass_at": rates, "rollouts": counts}


def columns(table: Table) -> dict[str, list[str]]:
    return {str(column.header): list(map(str, column.cells)) for column in table.columns}


def test_a_comparison_has_a_row_for_every_run_of_a_sweep() -> None:
    lost = {"label": "seed=2", "exit_code": 1}
    found = columns(
        render_comparison(
            [an_evaluation("seed=0", 0.5, 1), an_evaluation("seed=1", 0.4, 2), lost]
        ).whole
    )
    assert found["run"] == ["seed=0", "seed=1", "seed=2"]
    assert found["pass@1"] == ["50.0%  [25.0%, 75.0%]", "40.0%  [25.0%, 75.0%]", "–"]
    assert found["pass@k"] == ["–", "@2 80.0%", "–"]
    assert found["solved"] == ["2 of 4", "2 of 4", "–"]
    assert found["errors"] == ["3", "3", "–"]
    assert found["end"] == ["done", "done", "failure budget"]
