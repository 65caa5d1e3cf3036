"""Lanes: an attempt's stages follow one another, in the place where its session was opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.report.swimlane import MOST, draw_swimlane, read_attempts
from runners.store.run_store import RunStore
from tests.fakes.records import CONFIG, LOST, a_rollout, write_session

TIMINGS = {"queue": 3.0, "session": 0.5, "boot": 1.0, "harness": 4.0, "grade": 2.0, "total": 8.0}


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "run", CONFIG)


def test_stages_lie_around_the_opening_of_the_session(store: RunStore) -> None:
    record = a_rollout(timings=TIMINGS)
    write_session(store, record.session_id, 2)
    store.put_rollout(record)
    ((opened_at,),) = store.query("SELECT created_at FROM session")
    (run,) = read_attempts(store, 1, "train")
    stages = {bar.name: bar for bar in run.stages}
    assert stages["session"].start + 0.5 == pytest.approx(opened_at)
    assert stages["queue"].start + 3.0 == pytest.approx(stages["session"].start)
    assert stages["harness"].start == pytest.approx(opened_at + 1.0)
    assert run.end == pytest.approx(opened_at + 7.0)
    assert [(bar.name, bar.seconds) for bar in run.calls] == [("main", 0.5), ("main", 0.5)]


def test_the_sandbox_is_closed_after_the_patch_or_after_its_own_grading(store: RunStore) -> None:
    after_patch = a_rollout(timings=TIMINGS | {"patch": 0.5, "teardown": 0.25})
    in_place = a_rollout("train-000001-00-01", timings=TIMINGS | {"teardown": 0.25})
    for record in (after_patch, in_place):
        write_session(store, record.session_id, 1)
        store.put_rollout(record)
    first, second = read_attempts(store, 1, "train")
    names = [[bar.name for bar in each.stages if bar.seconds] for each in (first, second)]
    assert names[0][-3:] == ["patch", "teardown", "grade"]
    assert names[1][-2:] == ["grade", "teardown"]
    assert first.end - first.stages[0].start == pytest.approx(11.25)
    assert "teardown 0.25 s" in "".join(draw_swimlane([first]).itertext())


def test_an_attempt_shares_the_lane_of_the_one_it_replaces(store: RunStore) -> None:
    failed = a_rollout(outcome=LOST, counts=False, reward=None, solved=None, timings=TIMINGS)
    again = a_rollout(attempt=1, session_id="train-000001-00-00-a1", timings=TIMINGS)
    for record in (failed, again):
        write_session(store, record.session_id, 1)
        store.put_rollout(record)
    drawing = draw_swimlane(read_attempts(store, 1, "train"))
    texts = [part.text for part in drawing.iter("text")]
    assert texts.count("0.0") == 1
    assert (texts.count("!"), texts.count("✓")) == (1, 1)
    assert [part.get("class") for part in drawing.iter("g")] == ["replaced", None]
    about = [part.text or "" for part in drawing.iter("title")]
    assert "infra.sandbox_lost" in about[0]
    assert "harness 4.0 s" in about[1]


def test_of_many_attempts_those_that_ended_last_are_drawn(store: RunStore) -> None:
    for member in range(MOST + 10):
        record = a_rollout(f"train-000001-{member // 8:03}-{member % 8:02}", timings=TIMINGS)
        if member < 10:
            record = a_rollout(record.rollout_id, timings={"session": 0.1})
        store.add_session(record.session_id, {})
        store.put_rollout(record)
    drawing = draw_swimlane(read_attempts(store, 1, "train"))
    lanes = [part.text for part in drawing.iter("text") if part.get("class") == "lane"]
    assert len(lanes) == MOST
    assert "0.0" not in lanes
    assert any(f"{MOST} of {MOST + 10} attempts" in (p.text or "") for p in drawing.iter("p"))


def test_an_attempt_without_a_session_has_no_lane(store: RunStore) -> None:
    store.put_rollout(a_rollout())
    assert read_attempts(store, 1, "train") == []
