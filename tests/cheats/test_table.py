"""The public table says what was found, and what was found is what is promised."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from runners.sandboxes.local.backend import LocalBackend
from tests.cheats import table
from tests.cheats.odd_solutions import (
    draw_canaries,
    draw_solutions,
    grade_groups,
    grade_odd_solutions,
)
from tests.cheats.project import FILES, make_tasks
from tests.cheats.suite import load_cheats


def test_the_page_has_the_table_of_what_was_found() -> None:
    text = table.PAGE.read_text("utf-8")
    assert f"{table.BEGIN}\n{table.render(table.Results.load())}\n{table.END}" in text


def test_no_cell_is_paid_but_documented_ones_and_hardly_an_honest_solution_is_not() -> None:
    results = table.Results.load()
    names = {cheat.name for cheat in load_cheats()}
    assert all(found.keys() <= names for found in results.cheats.values())
    assert sum(map(len, results.cheats.values())) >= 200
    assert results.surprising == []
    assert table.NONE not in {r for found in results.cheats.values() for r in found.values()}
    assert results.odd >= 3000
    assert results.unpaid < results.odd / 1000


@pytest.mark.integration
async def test_a_group_with_a_cheat_in_it_is_not_paid_and_one_without_is(tmp_path: Path) -> None:
    backend = LocalBackend(table.SETTINGS, tmp_path / "sandboxes")
    try:
        task = make_tasks(tmp_path)["unittest"]
        assert await grade_odd_solutions(backend, task, 12) == []
        (canary, *_), wrong = await draw_canaries(backend, task, seed=1), FILES["shop/price.py"]
        equal = wrong.replace("sum(prices) - discount", "Equal() if discount else sum(prices)") + (
            "\n\nclass Equal:\n    def __eq__(self, other):\n        return True\n"
        )
        solution = next(draw_solutions(random.Random(3)))
        groups = [(canary, [solution, text]) for text in (wrong, equal)]
        unsolved, accused = await grade_groups(backend, task, groups, "g")
        assert "fail-to-pass tests fail" in unsolved
        assert "must fail were reported as passed" in accused
    finally:
        await backend.close()
