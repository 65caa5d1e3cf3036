"""The table of a sweep, and the problems of its jobs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from cli.tables import render_comparison, render_differences, render_problems
from conf.compose import compose
from conf.errors import ExitCode
from launch.local import plan_local_run
from launch.preflight import Problem
from runners.campaigns.jobs import Job


def test_the_comparison_marks_the_best_run_and_shows_runs_that_could_not_start() -> None:
    def document(label: str, last: float | None) -> dict[str, object]:
        return {
            "label": label,
            "exit_code": 0,
            "message": "",
            "steps": 3,
            "eval": {"first": 0.25, "last": last, "interval": last and (last - 0.1, last + 0.1)},
            "tokens": {"sampled": 1200, "trained": 1200},
            "reward": 0.5,
            "k3": None,
            "wall_s": 61.4,
        }

    failed = {"label": "c", "exit_code": 2, "message": "no"}
    table = render_comparison(
        [document("a", 0.5), document("b", 0.75), failed, document("d", None)]
    ).whole
    columns = {str(column.header): list(map(str, column.cells)) for column in table.columns}
    assert columns["run"] == ["a", "b", "c", "d"]
    rates = ["25.0 → 50.0 (40–60)", "25.0 → 75.0 (65–85)"]
    assert columns["held-out %"] == [*rates, "–", "25.0"]
    assert columns["reward"] == ["0.500", "0.500", "–", "0.500"]
    assert columns["trained"] == ["1,200", "1,200", "–", "1,200"]
    assert columns["k3"] == ["–", "–", "–", "–"]
    assert columns["time"] == ["1:01", "1:01", "–", "1:01"]
    assert columns["end"] == ["done", "done", "usage", "done"]
    styles = [getattr(cell, "style", None) for cell in table.columns[2].cells]
    assert styles == ["", "bold green", None, ""]

    pooled = document("all: 2 seeds", 0.7) | {"state": "mean"}
    rows = render_comparison([document("a", 0.5), document("b", 0.9)], [pooled]).whole
    assert [str(cell) for cell in rows.columns[0].cells] == ["a", "b", "all: 2 seeds"]
    assert str(list(rows.columns[-1].cells)[-1]) == "mean"
    assert [row.end_section for row in rows.rows] == [False, True, True]

    long = "trainer.advantage=grpo trainer.learning_rate=0.0003"
    named = render_comparison([document(long, 0.5), document("b", 0.9)])
    console = Console(width=80)
    with console.capture() as capture:
        console.print(named)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert f"1  {long}" in lines, "a label that does not fit is whole, below the table"
    assert any(line.split()[:2] == ["2", "3"] for line in lines)
    assert not any(long in line for line in lines[:-3])
    assert max(map(len, lines)) <= 80
    with (wide := Console(width=140)).capture() as capture:
        wide.print(named)
    assert any(line.split()[:3] == [*long.split(), "3"] for line in capture.get().splitlines())


def test_keys_of_runs_whose_names_do_not_fit_have_numbered_columns() -> None:
    labels = [f"runs/sweep/00{number}-trainer.advantage=grpo" for number in range(4)]
    console = Console(width=60)
    with console.capture() as capture:
        console.print(render_differences({"seed": [0, 1, 2, 3]}, labels))
    shown = capture.get()
    assert re.search(r"key +┃ 1 ┃ 2 ┃ 3 ┃ 4 ┃", shown)
    assert all(f"{number}  {label}" in shown for number, label in enumerate(labels, 1))
    with console.capture() as capture:
        console.print(render_differences({"seed": [0, 1]}, ["one", "other"]))
    assert re.search(r"key +┃ one ┃ other ┃", capture.get())


def test_of_many_problems_the_first_are_shown_and_the_errors_come_last(tmp_path: Path) -> None:
    config = compose([])
    plan = plan_local_run(config, tmp_path / "run")
    jobs = [Job(config, tmp_path / f"{number}", f"seed={number}") for number in range(25)]
    plans = [
        replace(plan, problems=tuple(Problem(each, f"{each} {number}") for each in (True, False)))
        for number in range(25)
    ]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(render_problems(jobs, plans, ExitCode.PREFLIGHT))
    lines = capture.get().splitlines()
    kinds = [line.partition(":")[0] for line in lines]
    assert kinds[:19] == ["warning"] * 18 + ["and 7 more warnings"]
    assert kinds[19:38] == ["error"] * 18 + ["and 7 more errors"]
