"""The state of a run, as read from its row."""

from __future__ import annotations

import pytest

from runners.records.store.run_state import RunState, State


@pytest.mark.parametrize(
    ("state", "heartbeat_at", "spent_s"),
    [
        (State.RUNNING, 107.0, 37.0),
        (State.RUNNING, None, 30.0),
        (State.RUNNING, 90.0, 30.0),  # the clock was set back
        (State.DONE, 107.0, 30.0),
    ],
)
def test_the_time_of_a_run_that_still_runs_counts_up_to_its_last_heartbeat(
    state: State, heartbeat_at: float | None, spent_s: float
) -> None:
    run = RunState(
        state=state,
        driver=None,
        exit_code=None,
        message="",
        info={"wall_s": 30.0},
        created_at=50.0,
        updated_at=100.0,
        heartbeat_at=heartbeat_at,
    )
    assert run.spent_s == spent_s
