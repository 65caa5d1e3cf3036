"""Long lists of tasks and flips are cut, folded, and say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.report.comparison_tasks import build_tasks, list_flips
from runners.report.element import render_html
from runners.report.task_rates import draw_rates
from runners.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout
from tests.runners.report.pages import Page, page_of


def write_evaluated_tasks(run_dir: Path, number: int) -> RunStore:
    """Write a run that has measured so many tasks once, and one of them in training."""
    store = RunStore.create(run_dir, CONFIG)
    store.put_rollout(a_rollout("train-000001-00-00", task_id="task-000"))
    for group in range(number):
        store.put_rollout(a_rollout(f"eval-000000-{group:03}-00", task_id=f"task-{group:03}"))
    return store


def test_of_many_tasks_the_least_solved_are_listed(tmp_path: Path) -> None:
    with write_evaluated_tasks(tmp_path / "run", 103) as store:
        held_out = page_of(store).sections["held-out-tasks"]
    assert (held_out.count("task-"), "and 3 more" in held_out) == (100, True)


def test_the_names_of_held_out_tasks_are_unfolded_those_of_training_tasks_are_not(
    tmp_path: Path,
) -> None:
    with write_evaluated_tasks(tmp_path / "run", 1) as store:
        text = page_of(store).text
    held_out = text.partition('id="held-out-tasks"')[2].partition("</section>")[0]
    training = text.partition('id="training-tasks"')[2].partition("</section>")[0]
    assert '<details open="open">' in held_out
    assert "<details>" in training


def test_of_a_task_that_was_measured_often_the_last_times_are_drawn() -> None:
    page = Page(render_html(draw_rates([(step, 2, 1) for step in range(45)])))
    assert page.attributes.count(("class", "interval blue")) == 40
    lines = page.sections[""].split("\n")
    assert [line.strip() for line in lines if line.strip()] == [
        f"{step}: 1 of 2" for step in range(5, 45)
    ]


@pytest.mark.parametrize(("flips", "opened"), [(30, True), (31, False)])
def test_only_a_short_list_of_flips_is_unfolded(flips: int, opened: bool) -> None:
    rows = [[f"task-{number}", "1 of 1", "0 of 1"] for number in range(flips)]
    page = Page(render_html(list_flips("Lost", ["task", "a", "b"], rows)))
    assert (("open", "open") in page.attributes) is opened
    assert f"Lost: {flips}" in page.sections[""]


def test_a_comparison_of_many_tasks_says_how_many_it_leaves_out() -> None:
    runs = [{"label": "a"}, {"label": "b"}]
    section = build_tasks({f"task-{number}": [(1, 1), None] for number in range(302)}, runs)
    assert section is not None
    text = Page(render_html(section)).sections["tasks"]
    assert (text.count("task-"), "and 2 more: compare --json has all" in text) == (300, True)
