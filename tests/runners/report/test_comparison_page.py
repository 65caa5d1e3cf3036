"""Runs side by side as a page, whatever runs, tasks and keys are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runners.report.against import read_against
from runners.report.comparison import compare_runs
from runners.report.comparison_page import render_comparison_page, write_comparison
from runners.report.comparison_tasks import COLOURS
from runners.report.page import write_report
from runners.store.json_text import clean_text
from runners.store.run_state import State
from runners.store.run_store import RunStore
from tests.fakes.browser import needs_chromium, start_browser
from tests.fakes.hostile import TEXTS
from tests.fakes.records import CONFIG, a_rollout
from tests.runners.report.pages import Page

PRICES: dict[str, Any] = {"observe": {"prices": {"sandbox_hour": 2.0, "gpu_hour": 1.0}}}


def make_run(run_dir: Path, solved: dict[str, bool], *, steps: int = 2, **config: Any) -> Path:
    """Write a campaign that was evaluated before and after its steps."""
    with RunStore.create(run_dir, CONFIG | config) as store:
        for step in (0, steps):
            for group, (task, verdict) in enumerate(solved.items()):
                name = f"eval-{step:06}-{group:03}-00"
                store.put_rollout(a_rollout(name, task_id=task, solved=verdict and step > 0))
            rate = sum(solved.values()) / len(solved) if step else 0.0
            store.finish_evaluation(step, {"solve_rate": rate, "tasks": len(solved)})
        for step in range(1, steps + 1):
            store.begin_step(step, ["t"])
            store.put_rollout(a_rollout(f"train-{step:06}-00-00"))
            store.finish_step(step, {"train/solve_rate": 1.0, "train/reward_mean": 0.5 * step})
    return run_dir


def page_of_runs(tmp_path: Path, *runs: Path) -> Page:
    """Return the page that compares runs."""
    return Page(render_comparison_page(compare_runs(runs), runs, tmp_path / "page.html"))


def test_the_page_has_results_curves_flips_tasks_cost_and_keys(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", {"x": True, "y": False, "z": True}, **PRICES)
    second = make_run(tmp_path / "b", {"x": False, "y": True, "z": True}, seed=1)
    page = page_of_runs(tmp_path, first, second)
    said = {name: " ".join(text.split()) for name, text in page.sections.items()}
    assert list(said) == [
        *("", "results", "curves", "task-by-task", "tasks", "cost", "different-keys")
    ]
    assert "a 2 0.0 % → 66.7 % 21–94 % 0.750" in said["results"]
    assert "a: " not in said["results"], "pass rates are of evaluations; these are campaigns"
    assert ("class", f"band {COLOURS[0]}") in page.attributes
    for title in ("Held-out solve rate", "Training solve rate", "Mean reward"):
        assert title in said["curves"]
    assert "step 2 a: 66.7 % b: 66.7 %" in said["curves"], "both in one tooltip"
    assert "b 3 +0.0 -100.0 to +100.0 1 1 1" in said["task-by-task"]
    assert "Lost by b: 1 task a b x 1 of 1 0 of 1" in said["task-by-task"]
    assert "Gained by b: 1 task a b y 0 of 1 1 of 1" in said["task-by-task"]
    assert "x 1 of 1 21–100 % 0 of 1 0–79 % y" in said["tasks"]
    assert "GPU hours – – sandbox hours 0.00467 0.00467" in said["cost"]
    assert "price of a solved task 0.00311 –" in said["cost"], "a has prices, b has none"
    assert "seed – 1" in said["different-keys"]
    assert not {"script", "link", "img"} & set(page.tags)


def test_runs_beyond_the_colours_are_dashed_and_link_their_reports(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"run {n}", {"x": True}) for n in range(len(COLOURS) + 1)]
    write_report(runs[0])
    write_comparison(compare_runs(runs), runs, tmp_path / "pages" / "runs.html")
    page = Page((tmp_path / "pages" / "runs.html").read_text("utf-8"))
    links = [value for name, value in page.attributes if name == "href" and "/" in value]
    assert links == ["../run%200/report.html"], "only reports that were written"
    over_report = Page(render_comparison_page(compare_runs(runs), runs, runs[0] / "report.html"))
    assert "report" not in over_report.sections[""].split(), "the page takes its place"
    classes = [value for name, value in page.attributes if name == "class"]
    assert f"stroke {COLOURS[0]}" in classes
    assert f"stroke {COLOURS[0]} dashed" in classes


def test_evaluations_are_compared_by_their_pass_rates(tmp_path: Path) -> None:
    for name, verdict in (("a", True), ("b", False)):
        with RunStore.create(tmp_path / name, CONFIG | {"eval": {"attempts_per_task": 2}}) as store:
            store.set_state(State.RUNNING, benchmark="bugfix")
            for member in range(2):
                solved = verdict and member == 0
                store.put_rollout(a_rollout(f"eval-000000-000-{member:02}", solved=solved))
    page = page_of_runs(tmp_path, tmp_path / "a", tmp_path / "b")
    assert "a: pass@1 50.0\u202f% (5–95 %), pass@2 100.0\u202f%" in page.sections["results"]
    assert "curves" not in page.sections


@pytest.mark.parametrize("text", [*TEXTS.values(), "</title></style><script>x</script>"])
def test_names_of_runs_tasks_and_keys_stay_text(tmp_path: Path, text: str) -> None:
    task, name = clean_text(text) or "empty", text.replace("/", "-").replace("\0", "")[:60]
    first = make_run(tmp_path / "a", {task: True}, note={text: text})
    folder = (name or "empty").encode("utf-8", "replace").decode()
    second = make_run(tmp_path / folder.strip(". "), {task: False})
    page = page_of_runs(tmp_path, first, second)
    page.text.encode()
    assert not {"script", "img", "iframe"} & set(page.tags)
    found = compare_runs([first, second])
    assert found["pairs"][0]["lost"] == [task]


@needs_chromium
async def test_a_browser_has_nothing_to_complain_about_and_finds_the_rollouts(
    tmp_path: Path,
) -> None:
    name = "<script>alert(1)</script>" + "x" * 300
    first = make_run(tmp_path / "a", {name: True})
    second = make_run(tmp_path / "b", {name: False})
    runs = [first, second]
    write_comparison(compare_runs(runs), runs, tmp_path / "runs.html")
    report = write_report(second, against=read_against(second, first))
    async with start_browser(tmp_path) as browser:
        for width, dark in ((1280, False), (390, True)):
            await browser.show_as(width, 800, dark=dark)
            await browser.open((tmp_path / "runs.html").as_uri())
            assert await browser.run("document.querySelector('#tasks code').textContent") == name
            wide = "document.documentElement.scrollWidth > innerWidth"
            assert not await browser.run(wide), "wide tables scroll by themselves"
            await browser.open(report.as_uri())
            assert not await browser.run(wide)
            await browser.run("document.querySelector('#against-another-run a').click()")
            assert "agentrl rollouts" in await browser.text("tr:target")
    assert browser.complaints == []
