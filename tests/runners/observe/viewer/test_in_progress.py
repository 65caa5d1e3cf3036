"""Rollouts that a run is working on: in lists, one by one, and through the page's server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from runners.observe.viewer.filters import parse_query
from runners.observe.viewer.in_progress import (
    GRADING,
    MOST,
    RETRYING,
    UNRECORDED,
    WORKING,
    describe_progress,
    find_in_progress,
)
from runners.observe.viewer.listing import find_place, list_rollouts
from runners.observe.viewer.page_reader import PageReader
from runners.observe.viewer.rollout_view import open_rollout
from runners.observe.viewer.search_index import SearchIndex
from runners.records.ids import parse_session_id, write_owner
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.store.run_state import State
from runners.records.store.run_store import STORE_FILE, RunStore
from tests.fakes.records import LOST, a_rollout, a_turn, branched_turns

HERE = "train-000004-001-0"
FINISHED = Outcome(OutcomeCode.POLICY_FINISHED, Stage.HARNESS, "")


def begin(store: RunStore, session_id: str, turns: int = 0, task: str = "flint") -> None:
    """Open a session that has so many turns by now."""
    store.add_session(session_id, {"task": task})
    for index in range(turns):
        store.add_turn(a_turn(session_id, index))


@pytest.fixture
def live(run_dir: Path) -> Iterator[RunStore]:
    """The example run while this process drives it: rollouts that work, are graded, are retried."""
    with RunStore.open(run_dir) as store:
        begin(store, "train-000004-001-09-a0", 3)  # of an execution that was killed
        store.set_state(State.RUNNING)
        begin(store, f"{HERE}0-a0", 2)
        begin(store, f"{HERE}1-a0", 1, task="other")
        store.put_rollout(a_rollout(f"{HERE}1", counts=False, outcome=FINISHED, verdict=None))
        begin(store, f"{HERE}2-a0", 1)
        store.put_rollout(a_rollout(f"{HERE}2", counts=False, outcome=LOST))
        begin(store, f"{HERE}3-a0", 1)
        store.put_rollout(a_rollout(f"{HERE}3", counts=False, outcome=LOST))
        store.add_session(f"{HERE}3-a1", {"task": "flint"})
        for turn in branched_turns(f"{HERE}3-a1"):
            store.add_turn(turn)
        begin(store, f"{HERE}4-a0", 1)
        store.put_rollout(a_rollout(f"{HERE}4"))
        yield store


def codes(store: RunStore, *only: str, **given: str) -> dict[str, str]:
    query = parse_query({"only": ["running", *only], **given})
    return {row["rollout_id"][-2:]: row["code"] for row in list_rollouts(store, query, 0, 50).rows}


def test_they_are_a_list_with_filters_and_orders(live: RunStore) -> None:
    assert codes(live) == {"00": WORKING, "01": GRADING, "02": RETRYING, "03": WORKING}
    assert list(codes(live, task="fl*", sort="-turns")) == ["03", "00", "02"]
    assert list(codes(live, kind="subagent")) == ["03"]
    assert codes(live, step="3") == codes(live, "eval") == codes(live, "solved") == {}
    query = parse_query({"only": "running"})
    row = list_rollouts(live, query, 3, 1).rows[0]
    assert (row["attempt"], row["turns"], row["task"], row["score"]) == (1, 8, "flint", None)
    assert find_place(live, query, f"{HERE}2") == 2
    assert list_rollouts(live, parse_query({}), 0, 50).sums["rollouts"] == 7


def test_they_are_found_by_what_was_said_so_far(live: RunStore, run_dir: Path) -> None:
    begin(live, f"{HERE}7-a0")
    live.add_turn(a_turn(f"{HERE}7-a0", reply={"role": "assistant", "content": "a quokka"}))
    index = SearchIndex(run_dir)
    index.update()
    index.attach(live)
    assert codes(live, search="quokka") == {"07": WORKING}
    query = parse_query({"only": "running", "search": "quokka"})
    assert list_rollouts(live, query, 0, 9).rows[0]["hit"]["turn"] == 0


def test_a_conversation_so_far_has_no_outcome_and_nothing_masked(live: RunStore) -> None:
    view = open_rollout(live, f"{HERE}0")
    assert (view.code, len(view.exported.turns), view.record.task_id) == (WORKING, 2, "flint")
    assert view.progress == {"code": WORKING, "attempt": 0, "turns": 2}
    assert [part["masked"] for part in view.exported.trajectory["segments"]] == [None]
    live.add_turn(a_turn(f"{HERE}0-a0", 2))
    progress = describe_progress(live, f"{HERE}0")
    assert progress is not None
    assert progress["turns"] == 3


def test_an_attempt_that_follows_a_failed_one_is_shown_beside_it(live: RunStore) -> None:
    view = open_rollout(live, f"{HERE}3")
    assert [each["code"] for each in view.attempts] == ["infra.sandbox_lost", WORKING]
    assert view.record.attempt == 1
    assert open_rollout(live, f"{HERE}3", 0).code == "infra.sandbox_lost"
    assert open_rollout(live, f"{HERE}1").code == GRADING
    retried = open_rollout(live, f"{HERE}2")
    assert (retried.code, retried.progress and retried.progress["code"]) == (
        "infra.sandbox_lost",
        RETRYING,
    )


def test_a_run_that_is_over_works_on_nothing_and_its_lost_turns_can_be_read(
    live: RunStore,
) -> None:
    assert "train-000004-001-09" not in find_in_progress(live)
    assert open_rollout(live, "train-000004-001-09").code == UNRECORDED
    live.set_state(State.INTERRUPTED)
    assert find_in_progress(live) == {}


def test_a_run_whose_driver_died_works_on_nothing_though_nothing_is_written(
    live: RunStore, run_dir: Path
) -> None:
    with (run_dir / STORE_FILE).open() as store:  # which a driver has open
        driver = psutil.Popen(["sleep", "600"], stdin=store)
    live.database.execute(
        "UPDATE run SET pid = ?, pid_started_at = ?", (driver.pid, driver.create_time())
    )
    reader = PageReader(run_dir)
    try:
        assert reader.read_run({})["in_progress"] == 4
        assert reader.read_rollout(f"{HERE}0", {})["outcome"]["code"] == WORKING
    finally:
        driver.kill()
        driver.wait()
    assert reader.read_run({})["in_progress"] == 0
    assert reader.read_rollout(f"{HERE}0", {})["outcome"]["code"] == UNRECORDED
    reader.close()
    view = open_rollout(live, f"{HERE}0")
    assert (view.code, view.progress, len(view.exported.turns)) == (UNRECORDED, None, 2)


def test_a_session_of_a_gateway_that_serves_alone_is_its_rollout(live: RunStore) -> None:
    live.set_state(State.RUNNING, gateway=True)
    begin(live, "mine-a1", 1, task="")
    begin(live, "done-a1", 1)
    record = replace(a_rollout(), rollout_id="done-a1", session_id="done-a1")
    live.put_rollout(record)
    assert find_in_progress(live) == {"mine-a1": (0, "mine-a1")}
    assert open_rollout(live, "mine-a1").code == WORKING


@pytest.mark.parametrize("attempt", [f"{HERE}0-a0", f"{HERE}0-a12", "12-a3-a4", "x-a-a1"])
def test_sql_and_python_read_the_same_rollout_from_the_name_of_an_attempt(
    live: RunStore, attempt: str
) -> None:
    parsed = parse_session_id(attempt)
    assert parsed is not None
    assert live.query(f"SELECT {write_owner('?1')}", (attempt,))[0][0] == parsed[0]


def test_no_name_reads_the_turns_of_another_rollout(live: RunStore) -> None:
    begin(live, f"{HERE}0-a0-a0", 1)
    assert [each["attempt"] for each in open_rollout(live, f"{HERE}0").attempts] == [0]


def test_sessions_that_never_end_are_bounded(live: RunStore) -> None:
    with live.database.write():
        for number in range(MOST + 5):
            live.database.execute(
                "INSERT INTO session VALUES (?, '{}', 9e9)", (f"open-{number:05}",)
            )
    assert len(find_in_progress(live)) == MOST
    assert replace(parse_query({"only": "running"}), only=()).running is False
