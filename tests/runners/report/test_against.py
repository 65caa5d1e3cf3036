"""A report names the tasks that another run solved and this one does not, and the reverse."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.report.against import read_against
from runners.report.page import write_report
from runners.store.json_text import clean_text
from runners.store.run_store import RunStore
from tests.fakes.hostile import TEXTS
from tests.fakes.records import CONFIG, a_rollout
from tests.runners.report.pages import Page


def evaluate(run_dir: Path, **verdicts: list[bool]) -> Path:
    """Write a run that has evaluated each task so often."""
    with RunStore.create(run_dir, CONFIG) as store:
        for group, (task, solved) in enumerate(verdicts.items()):
            for member, verdict in enumerate(solved):
                name = f"eval-000003-{group:03}-{member:02}"
                store.put_rollout(a_rollout(name, task_id=task, solved=verdict))
        store.finish_evaluation(3, {"solve_rate": 0.5, "tasks": len(verdicts)})
    return run_dir


def test_flips_are_named_with_both_counts_and_an_example(tmp_path: Path) -> None:
    before = evaluate(tmp_path / "a", kept=[True], lost=[True, True, False], won=[False, False])
    after = evaluate(
        tmp_path / "b", kept=[True], lost=[True, False, False], won=[True, True, False]
    )
    with RunStore.open(after) as store:
        store.put_rollout(a_rollout("eval-000000-002-00", task_id="won", solved=False))
    page = Page(write_report(after, against=read_against(after, before)).read_text("utf-8"))
    text = " ".join(page.sections["against-another-run"].split())
    assert "Of 3 tasks that a measured, too, the mean solve rate differs by +11.1 points" in text
    lost, _, won = text.partition("Solved here and not there: 1")
    # an example has the verdict by which the task is in its list
    assert lost.endswith("for example lost 2 of 3 1 of 3 eval-000003-001-02 "), lost
    assert won.endswith("for example won 0 of 2 2 of 3 eval-000003-002-01"), won
    assert "kept" not in text
    assert ("id", "rollout-eval-000003-002-01") in page.attributes


def test_runs_without_a_common_task_say_so(tmp_path: Path) -> None:
    before, after = evaluate(tmp_path / "a", x=[True]), evaluate(tmp_path / "b", y=[True])
    page = Page(write_report(after, against=read_against(after, before)).read_text("utf-8"))
    assert "No task was measured by this run and by a." in page.sections["against-another-run"]


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    before = evaluate(tmp_path / "old" / "run", x=[True])
    after = evaluate(tmp_path / "new" / "run", x=[True])
    page = Page(write_report(after, against=read_against(after, before)).read_text("utf-8"))
    assert f"that {before} measured" in page.sections["against-another-run"]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_names_of_tasks_stay_text(tmp_path: Path, text: str) -> None:
    task = clean_text(text) or "empty"
    before = evaluate(tmp_path / "a", **{task: [True]})
    after = evaluate(tmp_path / "b", **{task: [False]})
    page = Page(write_report(after, against=read_against(after, before)).read_text("utf-8"))
    page.text.encode()
    assert not {"script", "img", "iframe"} & set(page.tags)
    pair = read_against(after, before).pair
    assert pair is not None
    assert pair.lost == [task]
