"""An attempt's stages follow one another, in the place where its session was opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runners.observe.figures.swimlane import MOST, name_end, read_step
from runners.records.store.run_store import RunStore
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
    (attempt,) = read_step(store, "train", 1).attempts
    begun = {name: at for name, at, _ in attempt.stages}
    assert begun["session"] + 0.5 == pytest.approx(opened_at)
    assert begun["queue"] + 3.0 == pytest.approx(begun["session"])
    assert begun["harness"] == pytest.approx(opened_at + 1.0)
    assert attempt.ended_at == pytest.approx(opened_at + 7.0)
    assert [(call[0], call[2], call[4]) for call in attempt.calls] == [("main", 0.5, False)] * 2


def test_the_sandbox_is_closed_after_the_patch_or_after_its_own_grading(store: RunStore) -> None:
    after_patch = a_rollout(timings=TIMINGS | {"patch": 0.5, "teardown": 0.25})
    in_place = a_rollout("train-000001-00-01", timings=TIMINGS | {"teardown": 0.25})
    for record in (after_patch, in_place):
        write_session(store, record.session_id, 1)
        store.put_rollout(record)
    attempts = read_step(store, "train", 1).attempts
    names = [[name for name, _, seconds in each.stages if seconds] for each in attempts]
    assert names[0][-3:] == ["patch", "teardown", "grade"]
    assert names[1][-2:] == ["grade", "teardown"]


def test_of_many_attempts_those_that_ended_last_are_kept(store: RunStore) -> None:
    for member in range(MOST + 10):
        timings = TIMINGS if member >= 10 else {"session": 0.1}
        record = a_rollout(f"train-000001-{member // 8:03}-{member % 8:02}", timings=timings)
        store.add_session(record.session_id, {})
        store.put_rollout(record)
    store.put_rollout(a_rollout("train-000001-050-00"))  # got no session: it has no lane
    step = read_step(store, "train", 1)
    assert (len(step.attempts), step.total) == (MOST, MOST + 10)
    assert [each.lane for each in step.attempts][:2] == ["1.2", "1.3"]


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({}, "solved"),
        ({"solved": False}, "unsolved"),
        ({"outcome": LOST, "solved": None}, "infra"),
        ({"solved": None, "reward": None}, "policy"),
    ],
)
def test_the_end_of_an_attempt_is_its_verdict_or_why_there_is_none(
    changes: dict[str, Any], end: str
) -> None:
    assert name_end(a_rollout(**changes)) == end
