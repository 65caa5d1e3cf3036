"""What a browser draws of a run's document, whatever the run is and whatever was said in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from runners.observe.export.run_dump import dump
from runners.observe.report.against import read_against
from runners.observe.report.comparison import compare_runs
from runners.observe.report.page import write_comparison, write_report
from runners.observe.report.report_data import read_document
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.records.text import clean_text
from tests.fakes.browser import Browser, needs_chromium, start_browser
from tests.fakes.hostile import TEXTS
from tests.fakes.records import CONFIG, LOST, a_rollout, branched_run, example_run, write_session
from tests.runners.observe.report.pages import draw, draw_report
from tests.runners.observe.report.runs import R3, make_run, routed_run

pytestmark = [pytest.mark.integration, needs_chromium]
PRICES: dict[str, Any] = {"observe": {"prices": {"sandbox_hour": 2.0, "gpu_hour": 1.0}}}


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with start_browser(tmp_path) as browser:
        yield browser
        assert browser.complaints == []
        assert not [each for each in browser.requests if not each.startswith(("file:", "about:"))]


async def test_the_page_of_a_campaign_has_every_section(browser: Browser, tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        accused = Outcome(OutcomeCode.POLICY_TAMPERED, Stage.GRADE, "canary: 2 of 3 <passed>")
        store.put_rollout(a_rollout("train-000001-00-07", outcome=accused, solved=False))
        page = await draw_report(browser, store)
    assert list(page) == [
        *("", "alarms", "curves", "outcomes", "training-tasks", "branches-and-tokens"),
        *("rollouts", "cost", "tampering", "unsolved", "failures", "open-a-rollout"),
        "configuration",
    ]
    for part in ("run created", "1 of 3", "25.0\u202f% → 75.0\u202f%", "scenario linear"):
        assert part in page[""]
    assert "policy.finished 3 60.0\u202f%" in page["outcomes"]
    # both attempts that lost their sandbox, of which another attempt made one good
    assert "infra.sandbox_lost 2 1 harness gone: {} %s \ufffd" in page["failures"]
    assert "sampled by graded rollouts of finished steps 12 " in page["branches-and-tokens"]
    assert "trained: with a gradient 8 66.7\u202f%" in page["branches-and-tokens"]
    assert (
        "1 rollouts; they count as unsolved. In training, most: 1 in step 1." in (page["tampering"])
    )
    assert "canary: 2 of 3 <passed>" in page["tampering"]
    assert "step 1 solved: " in page["curves"], "a tooltip"
    assert "With observe.prices it says what that costs." in page["cost"]
    assert "CPU time is measured in local sandboxes only." in page["cost"]


async def test_the_least_solved_tasks_come_first_with_each_step(
    browser: Browser, tmp_path: Path
) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for step, task, solved in (
            *((1, "easy", 1), (1, "hard", 0), (1, "hard", 0), (1, "new", None)),
            *((3, "easy", 1), (3, "turned", 1), (2, "turned", 0), (2, "turned", 0)),
        ):
            name = f"train-{step:06}-00-{len(store.rollouts()):02}"
            store.put_rollout(a_rollout(name, task_id=task, solved=solved))
        for group in range(103):
            store.put_rollout(a_rollout(f"eval-000000-{group:03}-00", task_id=f"task-{group:03}"))
        page = await draw_report(browser, store)
    tasks = page["training-tasks"]
    assert "3 tasks were tried." in tasks
    assert "never 1 1 up to ¼ 0 0 up to ½ 1 0 up to ¾ 0 0 below 1 0 0 always 1 2" in tasks
    hard, turned = "train-000001-00-02", "train-000002-00-07"  # the newest that do not solve it
    rows = tasks.partition("for example ")[2]
    expected = f"hard 1 2 0.0\u202f% 0–66 % 1 0.0\u202f% 1: 0 of 2 {hard} turned 2 3 33.3\u202f% "
    assert rows.startswith(f"{expected}6–79 % 3 100.0\u202f% 2: 0 of 2 3: 1 of 1 {turned} "), rows
    held_out = page["held-out-tasks"]
    assert (held_out.count("task-"), "and 3 more" in held_out) == (100, True)
    unfolded = "document.querySelector('#{} details').open"
    assert await browser.run(unfolded.format("held-out-tasks"))
    assert not await browser.run(unfolded.format("training-tasks"))


async def test_routing_replay_has_a_row_and_a_sentence_for_each_figure(
    browser: Browser, tmp_path: Path
) -> None:
    with routed_run(tmp_path / "run", **{"r3/k3": 4e-5, "r3/k3_native": None}) as store:
        said = (await draw_report(browser, store))["routing-replay"]
    for name in R3:
        assert name.removeprefix("r3/") in said
    assert "k3 3e-5 2e-5 4e-5" in said  # mean, first, last
    assert "k3_native 8e-5 8e-5 8e-5" in said  # of the step in which it was measured
    assert "disagree_token 2.0\u202f%" in said
    assert "invalid_rows 7 7 7" in said
    assert "found nothing wrong" in said
    for chart in ("Mismatch", "Its tail", "Tokens off", "Choices", "Coverage", "Gradient"):
        assert chart in said
    assert "without: 8e-5" in said  # a tooltip
    with routed_run(tmp_path / "nothing", **dict.fromkeys(R3)) as store:
        store.event("routing_fault", {"step": 2, "reason": "layer 1 is of other tokens"})
        said = (await draw_report(browser, store))["routing-replay"]
    assert f"2 {' '.join('–' * len(R3))}" in said, "a step that trained nothing"
    assert "1 alarm step 2 layer 1 is of other tokens" in said


async def test_a_run_that_has_not_begun_is_a_page_too(browser: Browser, tmp_path: Path) -> None:
    for name, lines in (("plain", []), ("routed", ["routing_replay=rollout"])):
        config = compose(lines).model_dump(mode="json")
        with RunStore.create(tmp_path / name, config) as store:
            page = await draw_report(browser, store)
        assert "No rollout has ended yet." in page["outcomes"]
        assert "curves" not in page
        assert f"0 of {config['run']['steps']}" in page[""]
        assert ("No step has ended yet." in page.get("routing-replay", "")) == bool(lines)


async def test_an_evaluation_shows_pass_at_k_over_what_was_graded(
    browser: Browser, tmp_path: Path
) -> None:
    config = CONFIG | {"eval": {"attempts_per_task": 2}}
    with RunStore.create(tmp_path / "run", config) as store:
        store.set_state(State.RUNNING, benchmark="bugfix")
        for group, member, solved in ((0, 0, True), (0, 1, False), (1, 0, False), (1, 1, False)):
            record = a_rollout(f"eval-000000-{group:03}-{member:02}", solved=solved)
            write_session(store, record.session_id, 2)
            store.put_rollout(record)
        store.put_rollout(a_rollout("eval-000000-002-00", outcome=LOST, reward=None, solved=None))
        page = await draw_report(browser, store)
    assert "evaluation of bugfix" in page[""]
    assert "pass@1 25.0\u202f%" in page[""]
    assert "pass@2 50.0\u202f%" in page[""]
    assert "2 tasks" in page[""]
    assert "steps" not in page[""]
    assert "The evaluation" in page["rollouts"]
    assert "policy.finished 4 80.0\u202f%" in page["outcomes"]


async def test_a_check_of_tasks_shows_what_pays(browser: Browser, tmp_path: Path) -> None:
    found = {
        "times": 3,
        "tasks": 2,
        "fit": 1,
        "set_aside": {"constructor": "it would pay <makefile> (2 of 3)"},
        "not_graded": {},
        "attacks": {"makefile": {"sentence": "Has make do nothing.", "tasks": 2, "paid": 1}},
        "rows": {
            "good": {"gold": {"solved": 3}},
            "constructor": {"makefile": {"solved": 2, "unsolved": 1}},
        },
    }
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        store.set_state(State.RUNNING, benchmark="tasks")
        (store.run_dir / "calibration.json").write_text(json.dumps(found))
        page = await draw_report(browser, store)
    assert "check of tasks" in page[""]
    assert "1 of 2" in page[""]
    shown = page["tasks-checked"]
    assert "constructor set aside it would pay <makefile> (2 of 3)" in shown
    assert "makefile solved 2, unsolved 1" in shown
    assert "good fit" in shown
    assert "makefile Has make do nothing. 2 1" in shown


async def test_attempts_of_a_rollout_share_a_lane(browser: Browser, tmp_path: Path) -> None:
    timings = {"queue": 3.0, "session": 0.5, "boot": 1.0, "harness": 4.0, "grade": 2.0}
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        failed = a_rollout(outcome=LOST, counts=False, reward=None, solved=None, timings=timings)
        again = a_rollout(attempt=1, session_id="train-000001-00-00-a1", timings=timings)
        for record in (failed, again):
            write_session(store, record.session_id, 1)
            store.put_rollout(record)
        said = (await draw_report(browser, store))["rollouts"]
    lanes = "[...document.querySelectorAll('.lane-name')].map((one) => one.textContent)"
    assert await browser.run(lanes) == ["0.0"]
    groups = "[...document.querySelectorAll('.lanes g')].map((one) => one.classList[0] ?? '')"
    assert await browser.run(groups) == ["faded", ""]
    assert "train-000001-00-00, attempt 0 sum-of-squares-001: infra.sandbox_lost" in said
    assert "harness 4.0 s" in said


async def test_a_named_rollout_has_its_commands_and_a_link_into_a_dump_that_is_there(
    browser: Browser, tmp_path: Path
) -> None:
    run = tmp_path / "run a"
    example_run(run).close()
    links = "[...document.querySelectorAll('#open-a-rollout a')].map((one) => decodeURI(one.href))"
    page = await draw(browser, write_report(run))
    assert f"agentrl rollouts '{run}' train-000001-00-00" in page["open-a-rollout"]
    assert await browser.run(links) == []
    with RunStore.open(run, read_only=True) as store:
        dump(store, run / "dump", formats=("html",), report=lambda: read_document(store).to_dict())
    wanted = f"{(run / 'dump' / 'trajectories.html').as_uri()}#train-000001-00-00"
    for out in (None, tmp_path / "reports" / "a.html"):
        await draw(browser, write_report(run, out))
        assert wanted.replace("%20", " ") in await browser.run(links)
    await browser.open(f"{wanted.partition('#')[0]}#report:run")
    await browser.until("document.querySelector('#failures a') !== null")
    await browser.run("document.querySelector('#failures a').click()")
    await browser.until("document.querySelector('.crumbs') !== null")


async def test_foreign_text_stays_text(browser: Browser, tmp_path: Path) -> None:
    short = "".join(text for name, text in TEXTS.items() if name != "long")
    texts = [f"</title></style><script>x</script>&amp;<!--{short}", TEXTS["long"], ""]
    foreign = "document.querySelectorAll('main :is(script, img, iframe, style, object)').length"
    for number, text in enumerate(texts):
        first, second = write_hostile_runs(tmp_path / str(number), text)
        page = await draw(browser, write_report(second, against=read_against(second, first)))
        assert "infra.model 1" in page["failures"]
        assert "Solved there and not here: 1" in page["against-another-run"]
        assert await browser.run(foreign) == 0
        path = tmp_path / f"{number}.html"
        write_comparison(compare_runs([first, second]), [first, second], path)
        page = await draw(browser, path)
        assert "Lost by b: 1" in page["task-by-task"]
        assert await browser.run(foreign) == 0


def write_hostile_runs(folder: Path, text: str) -> list[Path]:
    """Write a run that solves its task, and one that does not; all texts of both are foreign."""
    for name, solved in (("a", True), ("b", False)):
        with RunStore.create(folder / name, CONFIG | {"note": {text: text}}) as store:
            task = clean_text(text) or "empty"
            lost = Outcome(OutcomeCode.INFRA_MODEL, Stage.HARNESS, f"<{text[:99]}>", None)
            record = a_rollout(task_id=task, outcome=lost, reward=None, solved=None, turns=1)
            write_session(store, record.session_id, 1)
            store.put_rollout(record)
            verdict = {"reason": text, "log": text}
            store.put_rollout(
                a_rollout("eval-000001-00-00", task_id=task, solved=solved, verdict=verdict)
            )
            store.finish_evaluation(1, {"solve_rate": float(solved), "tasks": 1})
            store.event("retry", {"message": text, text: 1})
            store.set_state(State.FAILED, exit_code=1, message=text)
    return [folder / "a", folder / "b"]


async def test_runs_are_compared_with_results_curves_flips_tasks_cost_and_keys(
    browser: Browser, tmp_path: Path
) -> None:
    first = make_run(tmp_path / "a", {"x": True, "y": False, "z": True}, **PRICES)
    second = make_run(tmp_path / "b", {"x": False, "y": True, "z": True}, seed=1)
    write_comparison(compare_runs([first, second]), [first, second], tmp_path / "page.html")
    said = await draw(browser, tmp_path / "page.html")
    assert list(said) == [
        *("", "results", "curves", "task-by-task", "tasks", "cost", "different-keys")
    ]
    assert "a 2 0.0\u202f% → 66.7\u202f% 21–94 % 0.750" in said["results"]
    assert "a: " not in said["results"], "pass rates are of evaluations; these are campaigns"
    assert await browser.run("document.querySelectorAll('.band.blue').length") == 1
    for title in ("Held-out solve rate", "Training solve rate", "Mean reward"):
        assert title in said["curves"]
    assert "step 2 a: 66.7\u202f% b: 66.7\u202f%" in said["curves"], "both in one tooltip"
    assert "b 3 +0.0 -100.0 to +100.0 1 1 1" in said["task-by-task"]
    assert "Lost by b: 1 task a b x 1 of 1 0 of 1" in said["task-by-task"]
    assert "Gained by b: 1 task a b y 0 of 1 1 of 1" in said["task-by-task"]
    assert "x 1 of 1 21–100 % 0 of 1 0–79 % y" in said["tasks"]
    assert "GPU hours – – sandbox hours 0.00467 0.00467" in said["cost"]
    assert "price of a solved task 0.00311 –" in said["cost"], "a has prices, b has none"
    assert "seed – 1" in said["different-keys"]


async def test_runs_beyond_the_colours_are_dashed_and_link_their_reports(
    browser: Browser, tmp_path: Path
) -> None:
    runs = [make_run(tmp_path / f"run {n}", {"x": True}) for n in range(9)]
    write_report(runs[0])
    write_comparison(compare_runs(runs), runs, tmp_path / "pages" / "runs.html")
    await draw(browser, tmp_path / "pages" / "runs.html")
    links = "[...document.querySelectorAll('.runs a')].map((one) => one.getAttribute('href'))"
    assert await browser.run(links) == ["../run%200/report.html"], "only those that were written"
    assert await browser.run("document.querySelectorAll('.stroke.blue').length > 1")
    assert await browser.run("document.querySelectorAll('.stroke.blue.dashed').length > 0")
    write_comparison(compare_runs(runs), runs, runs[0] / "report.html")
    await draw(browser, runs[0] / "report.html")
    assert await browser.run(links) == [], "the page takes its place"


async def test_evaluations_are_compared_by_their_pass_rates(
    browser: Browser, tmp_path: Path
) -> None:
    runs = []
    for name, verdict in (("a", True), ("b", False)):
        with RunStore.create(tmp_path / name, CONFIG | {"eval": {"attempts_per_task": 2}}) as store:
            store.set_state(State.RUNNING, benchmark="bugfix")
            for member in range(2):
                solved = verdict and member == 0
                store.put_rollout(a_rollout(f"eval-000000-000-{member:02}", solved=solved))
        runs.append(tmp_path / name)
    write_comparison(compare_runs(runs), runs, tmp_path / "page.html")
    page = await draw(browser, tmp_path / "page.html")
    assert "a: pass@1 50.0\u202f% (5–95 %), pass@2 100.0\u202f%" in page["results"]
    assert "curves" not in page


async def test_a_page_fits_a_phone_and_a_screen_light_and_dark(
    browser: Browser, tmp_path: Path
) -> None:
    name = "<script>alert(1)</script>" + "x" * 300
    first, second = make_run(tmp_path / "a", {name: True}), make_run(tmp_path / "b", {name: False})
    runs = [first, second]
    write_comparison(compare_runs(runs), runs, tmp_path / "runs.html")
    report = write_report(second, against=read_against(second, first))
    with branched_run(tmp_path / "branched", rollouts=2) as store:
        store.put_rollout(replace(a_rollout("train-000001-00-07"), timings={"total": 9.0}))
    branched = write_report(tmp_path / "branched")
    for width, dark in ((1280, False), (390, True)):
        await browser.show_as(width, 800, dark=dark)
        for page in (tmp_path / "runs.html", report, branched):
            await browser.open(page.as_uri())
            wide = "document.documentElement.scrollWidth > innerWidth"
            assert not await browser.run(wide), "wide tables scroll by themselves"
        await browser.open(report.as_uri())
        await browser.run("document.querySelector('#against-another-run a').click()")
        assert "agentrl rollouts" in await browser.text("tr:target")
