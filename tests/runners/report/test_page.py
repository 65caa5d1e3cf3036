"""A report says what happened, whatever the run is and whatever was said in it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from conf.errors import ExitCode
from runners.export.dump import dump
from runners.report.document import ReportError
from runners.report.page import is_quick, write_report
from runners.store.json_text import clean_text
from runners.store.run_state import State
from runners.store.run_store import RunStore
from runners.trajectory.outcome import Outcome, OutcomeCode, Stage
from runners.trajectory.printable import make_printable
from tests.fakes.hostile import TEXTS
from tests.fakes.records import (
    CONFIG,
    LOST,
    a_rollout,
    branched_run,
    example_run,
    run_with_parts,
    write_session,
)
from tests.runners.report.pages import Page, page_of

R3 = {
    "r3/k1": 1e-5,
    "r3/k3": 2e-5,
    "r3/p999_abs": 0.25,
    "r3/F_1.1": 0.0125,
    "r3/F_2": 0.0,
    "r3/k3_native": 8e-5,
    "r3/p999_abs_native": 0.75,
    "r3/F_1.1_native": 0.03,
    "r3/captured": 1.0,
    "r3/replayed": 0.99,
    "r3/disagree_slot": 0.004,
    "r3/disagree_token": 0.02,
    "r3/disagree_sample_max": 0.01,
    "r3/invalid_rows": 7.0,
    "r3/refused_samples": 0.0,
    "r3/gate_grad_norm": 0.05,
    "r3/routing_share": 0.75,
}


def routed_run(run_dir: Path, **later: Any) -> RunStore:
    """Make a run of two steps with routing replay; ``later`` is the second's."""
    config = compose(["routing_replay=rollout", "run.steps=2"]).model_dump(mode="json")
    store = RunStore.create(run_dir, config)
    for step, metrics in ((1, R3), (2, R3 | later)):
        store.begin_step(step, ["t"])
        store.put_rollout(a_rollout(f"train-00000{step}-00-00"))
        store.finish_step(step, {"policy/k3": 2e-5, **metrics})
    return store


def test_the_page_of_a_campaign_has_every_section_and_loads_nothing(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        page = page_of(store)
    assert list(page.sections) == [
        *("", "alarms", "curves", "outcomes", "training-tasks", "branches-and-tokens"),
        *("rollouts", "cost", "unsolved", "failures", "open-a-rollout", "configuration"),
    ]
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert all(name != "src" for name, _ in page.attributes)
    links = {value for name, value in page.attributes if name == "href"}
    places = {f"#{value}" for name, value in page.attributes if name == "id"}
    assert "#rollout-train-000001-00-00" in links
    assert links <= places, "every link works, whatever else there is"
    policy = next(v for n, v in page.attributes if n == "content" and "default-src" in v)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    head = page.sections[""]
    for part in ("run", "created", "1 of 3", "25.0\u202f% → 75.0\u202f%", "scenario  linear"):
        assert part in head


def test_training_tasks_are_counted_by_solve_rate_and_the_least_solved_come_first(
    tmp_path: Path,
) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for step, task, solved in (
            *((1, "easy", 1), (1, "hard", 0), (1, "hard", 0), (1, "new", None)),
            *((3, "easy", 1), (3, "turned", 1), (2, "turned", 0), (2, "turned", 0)),
        ):
            number = len(store.rollouts())
            name = f"train-{step:06}-00-{number:02}"
            store.put_rollout(a_rollout(name, task_id=task, solved=solved))
        store.put_rollout(a_rollout("eval-000001-00-00", task_id="held-out"))
        store.put_rollout(a_rollout("train-000003-01-00", task_id="retried", counts=False))
        text = " ".join(page_of(store).sections["training-tasks"].split())
    assert "3 tasks were tried." in text
    assert "never 1 1 up to ¼ 0 0 up to ½ 1 0 up to ¾ 0 0 below 1 0 0 always 1 2" in text
    rows = text.partition("for example ")[2]
    hard, turned = "train-000001-00-02", "train-000002-00-07"  # the newest that do not solve it
    expected = f"hard 1 2 0.0 % 0–66 % 1 0.0 % 1: 0 of 2 {hard} turned 2 3 33.3 % 6–79 % 3 100.0 % "
    assert rows.startswith(f"{expected}2: 0 of 2 3: 1 of 1 {turned} "), rows
    for name in ("held-out", "retried", "new"):
        assert name not in text


def test_held_out_tasks_are_listed_over_all_evaluations(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for step, verdicts in ((0, (False, False)), (4, (True, False)), (8, (True, None))):
            for group, verdict in enumerate(verdicts):
                name = f"eval-{step:06}-{group:03}-00"
                store.put_rollout(a_rollout(name, task_id=f"task-{group}", solved=verdict))
        text = " ".join(page_of(store).sections["held-out-tasks"].split())
    rows = text.partition("for example ")[2]
    never = "task-1 2 2 0.0 % 0–66 % 4 0.0 % 0: 0 of 1 4: 0 of 1 eval-000004-001-00 "
    assert rows.startswith(f"{never}task-0 3 3 66.7 % 21–94 % 8 100.0 % "), rows


def test_a_task_that_is_trained_and_measured_has_an_example_of_each(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for name in ("eval-000001-000-00", "train-000001-00-00"):
            store.put_rollout(a_rollout(name, task_id="both", solved=True))
        sections = page_of(store).sections
    assert "train-000001-00-00" in sections["training-tasks"]
    assert "eval-000001-000-00" in sections["held-out-tasks"]


def test_outcomes_failures_and_tokens_add_up(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        page = page_of(store)
    outcomes = page.sections["outcomes"]
    assert "policy.finished 3 75.0\u202f%" in outcomes
    assert "infra.sandbox_lost 1 25.0\u202f%" in outcomes
    # both attempts that lost their sandbox, of which another attempt made one good
    assert "infra.sandbox_lost 2 1 harness gone: {} %s \ufffd" in page.sections["failures"]
    tokens = page.sections["branches-and-tokens"]
    assert "sampled by graded rollouts of finished steps 12 " in tokens
    assert "averaged in the loss 12 100.0" in tokens
    assert "trained: with a gradient 8 66.7\u202f%" in tokens
    assert "sampled by attempts that were retried 4" in tokens


def test_tampering_is_shown_with_its_evidence(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        accused = Outcome(OutcomeCode.POLICY_TAMPERED, Stage.GRADE, "canary: 2 of 3 <passed>")
        store.put_rollout(a_rollout("train-000001-00-07", outcome=accused, solved=False))
        page = page_of(store)
    shown = page.sections["tampering"]
    assert "1 rollouts; they count as unsolved. In training, most: 1 in step 1." in shown
    assert "canary: 2 of 3 <passed>" in shown
    assert "train-000001-00-07" in shown
    assert "policy.tampered 1" in page.sections["outcomes"]


def test_parts_of_tasks_are_shown_where_they_are_paid(tmp_path: Path) -> None:
    for name, credit in (("paid", 0.3), ("unpaid", 0.0)):
        with run_with_parts(tmp_path / name, credit) as store:
            said = page_of(store).sections["outcomes"]
        line = "Solved in part, in training: 1 of 3 graded, 25% of their tests on average."
        assert (line in said) == (credit > 0)


def test_branches_and_breaks_are_listed_with_their_reasons(tmp_path: Path) -> None:
    with branched_run(tmp_path / "run", rollouts=2) as store:
        said = page_of(store).sections["branches-and-tokens"]
    assert "main 2 8 24 50.0\u202f%" in said
    assert "subagent 2 4 12 25.0\u202f%" in said
    assert "edit 2 edit: taken back train-000001-00-00-a0" in said
    assert "compaction 2 compaction: summed up" in said


def test_routing_replay_has_a_row_and_a_sentence_for_each_figure(tmp_path: Path) -> None:
    with routed_run(tmp_path / "run", **{"r3/k3": 4e-5, "r3/k3_native": None}) as store:
        page = page_of(store)
    said = page.sections["routing-replay"]
    for name in R3:
        assert name.removeprefix("r3/") in said
    assert "k3 3e-05 2e-05 4e-05" in said  # mean, first, last
    assert "k3_native 8e-05 8e-05 8e-05" in said  # of the step in which it was measured
    assert "disagree_token 2.0\u202f%" in said
    assert "invalid_rows 7 7 7" in said
    assert "found nothing wrong" in said
    for chart in ("Mismatch", "Its tail", "Tokens off", "Choices", "Coverage", "Gradient"):
        assert chart in said
    assert "without: 8e-05" in said  # a tooltip


def test_a_step_that_trained_nothing_has_dashes(tmp_path: Path) -> None:
    with routed_run(tmp_path / "run", **dict.fromkeys(R3)) as store:
        page = page_of(store)
    said = page.sections["routing-replay"]
    assert "k3 2e-05 2e-05 2e-05" in said  # of the other step alone
    assert f"2 {' '.join('–' * len(R3))} " in said


def test_alarms_of_routing_are_listed_with_layer_and_sample(tmp_path: Path) -> None:
    reason = "routes token 3 in layer 1 twice to one expert ([4, 4]): is it padding?"
    with routed_run(tmp_path / "run", **{"r3/refused_samples": 1.0}) as store:
        store.event("routing_refused", {"rollout_id": "train-000002-00-00", "reason": reason})
        damaged = "RoutingError: the routing of turn 0 of session s belongs to other tokens"
        store.event("unbuilt", {"rollout_id": "train-000001-00-00", "reason": damaged})
        store.event("unbuilt", {"rollout_id": "x", "reason": "ChainError: no concern of routing"})
        said = page_of(store).sections["routing-replay"]
    assert damaged in said
    assert "2 alarms " in said
    assert f"train-000002-00-00  {reason}" in said
    assert "found nothing wrong" not in said


def test_a_run_without_routing_has_no_section_of_it(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        assert "routing-replay" not in page_of(store).sections


def test_a_run_that_has_not_begun_is_a_page_too(tmp_path: Path) -> None:
    for name, lines in (("plain", []), ("routed", ["routing_replay=rollout"])):
        config = compose(lines).model_dump(mode="json")
        with RunStore.create(tmp_path / name, config) as store:
            page = page_of(store)
        assert "No rollout has ended yet." in page.sections["outcomes"]
        assert "curves" not in page.sections
        assert f"0 of {config['run']['steps']}" in page.sections[""]
        if lines:
            assert "No step has ended yet." in page.sections["routing-replay"]


def test_an_interrupted_run_shows_the_command_that_continues_it(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        store.set_state(State.RUNNING)
        store.begin_step(2, ["t"])
        write_session(store, "train-000002-00-00-a0", 2)
        store.put_rollout(a_rollout("train-000002-00-00"))
        assert "running" in page_of(store).sections[""]
        store.set_state(State.INTERRUPTED, exit_code=130, message="interrupted; all is kept")
        page = page_of(store)
    head = page.sections[""]
    assert "interrupted; all is kept" in head
    assert f"agentrl run --resume {tmp_path / 'run'}" in head
    assert "1 rollout of the next done" in head
    assert "Step 2, the newest" in page.sections["rollouts"]


def test_an_evaluation_shows_pass_at_k_over_what_was_graded(tmp_path: Path) -> None:
    config = CONFIG | {"eval": {"attempts_per_task": 2}}
    with RunStore.create(tmp_path / "run", config) as store:
        store.set_state(State.RUNNING, benchmark="bugfix")
        for group, member, solved in ((0, 0, True), (0, 1, False), (1, 0, False), (1, 1, False)):
            record = a_rollout(f"eval-000000-{group:03}-{member:02}", solved=solved)
            write_session(store, record.session_id, 2)
            store.put_rollout(record)
        lost = a_rollout("eval-000000-002-00", outcome=LOST, reward=None, solved=None)
        store.put_rollout(lost)
        page = page_of(store)
    head = page.sections[""]
    assert "evaluation of bugfix" in head
    assert "pass@1 25.0\u202f%" in head
    assert "pass@2 50.0\u202f%" in head
    assert "2 tasks" in head
    assert "steps" not in head
    assert "The evaluation" in page.sections["rollouts"]
    assert "evaluation 4 80.0\u202f%" not in page.sections["outcomes"]
    assert "policy.finished 4 80.0\u202f%" in page.sections["outcomes"]


@pytest.mark.parametrize("text", [*TEXTS.values(), "</title></style><script>x</script>&amp;<!--"])
def test_foreign_text_stays_text(tmp_path: Path, text: str) -> None:
    with RunStore.create(tmp_path / "run", CONFIG | {"note": text}) as store:
        plain = page_of(store)
        lost = Outcome(OutcomeCode.INFRA_MODEL, Stage.HARNESS, f"<{text[:99]}>", None)
        record = a_rollout(
            task_id=clean_text(text), outcome=lost, reward=None, solved=None, turns=1
        )
        write_session(store, record.session_id, 1)
        store.put_rollout(record)
        store.event("retry", {"message": text, text: 1})
        store.set_state(State.FAILED, exit_code=1, message=text)
        page = page_of(store)
    page.text.encode()  # valid UTF-8
    assert set(page.tags) - set(plain.tags) <= {"g", "rect", "line", "text", "a", "h3", "svg"} | {
        *("details", "summary", "li", "ul", "i", "table", "thead", "tbody", "tr", "th", "td"),
        *("figure", "figcaption", "path", "title", "div"),
    }
    shown = make_printable(f"<{text[:99]}>")
    assert _squeezed(shown) in _squeezed(page.sections["failures"])


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def test_a_named_rollout_has_its_commands_and_a_link_into_a_dump_that_is_there(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run a"
    example_run(run).close()
    assert is_quick(run)
    page = Page(write_report(run).read_text("utf-8"))
    assert "agentrl view " in page.sections["open-a-rollout"]
    assert f"agentrl rollouts '{run}' train-000001-00-00" in page.sections["open-a-rollout"]
    with RunStore.open(run, read_only=True) as store:
        dump(store, run / "dump", formats=("html",))
    inside = Page(write_report(run).read_text("utf-8"))
    outside = Page(write_report(run, tmp_path / "reports" / "a.html").read_text("utf-8"))
    wanted = "dump/trajectories.html#train-000001-00-00"
    assert ("href", wanted) in inside.attributes
    assert ("href", f"../run%20a/{wanted}") in outside.attributes


def test_a_page_that_cannot_be_written_is_refused_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example_run(tmp_path / "run").close()
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match="choose another --out"):
        write_report(tmp_path / "run", tmp_path / "file" / "report.html")
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "folder")
    for folder in (tmp_path / "folder", Path()):
        with pytest.raises(ReportError, match="choose another --out"):
            write_report(tmp_path / "run", folder)
    assert list(tmp_path.rglob("*.partial")) == []


def test_rollouts_that_took_longest_come_first(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for member in range(20):
            record = a_rollout(f"train-000001-00-{member:02}")
            store.put_rollout(replace(record, timings={"harness": 1.0, "total": float(member)}))
        said = page_of(store).sections["rollouts"]
    order = re.findall(r"train-000001-00-(\d\d)", said)
    assert order == [f"{member:02}" for member in range(19, 7, -1)]


@pytest.mark.parametrize(
    ("code", "message", "alarms"),
    [
        (ExitCode.FAILURE_BUDGET, "train-000002-00-00 routes token 3 twice", True),
        (ExitCode.SERVICE_GONE, "engine http://router:3000 /generate: unreachable", False),
        (ExitCode.FAILURE_BUDGET, "40 of 50 rollouts failed", False),
    ],
)
def test_a_failed_self_check_that_ended_the_run_is_an_alarm(
    tmp_path: Path, code: ExitCode, message: str, alarms: bool
) -> None:
    with routed_run(tmp_path / "run") as store:
        store.set_state(State.RUNNING)
        store.set_state(State.FAILED, exit_code=code, message=message)
        said = page_of(store).sections["routing-replay"]
    assert (f"It ended the run: {message}" in said) == alarms
    assert ("found nothing wrong" in said) != alarms


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium")
def test_a_browser_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    with routed_run(tmp_path / "run") as store:
        store.event("retry", {"message": "<script>alert(1)</script>"})
    path = write_report(tmp_path / "run")
    done = subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in done.stdout
    assert "CONSOLE" not in done.stderr
