"""A stored rollout, replayed with the real agent program in a real sandbox."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from conf.errors import ExitCode
from runners.campaigns.replay.run import ReplayError, replay
from runners.records.store.run_store import RunStore
from tests.runners.campaigns.replay.recorded_rollout import ROLLOUT, record, run_config
from tests.runners.rollouts.harnesses.real_agent import call, say

pytestmark = pytest.mark.integration

LOOK = call("Bash", command="ls; python -c 'import time; print(f\"in {time.time() % 1:.6f}s\")'")
"""How long something took is no difference."""
SUBMIT = call("Submit", message="done")
SENT = call("Agent", prompt="look around")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one rollout of our own agent."""
    place = tmp_path_factory.mktemp("native")
    asyncio.run(record(run_config(place), place / "run", [LOOK, LOOK, SUBMIT]))
    return place / "run"


def content(run: Path) -> dict[str, bytes]:
    """Return the run's turns and tokens, file by file."""
    with RunStore.open(run, read_only=True) as store:
        rows = store.query("SELECT count(*) FROM turn")[0][0]
    files = {path.name: path.read_bytes() for path in run.rglob("*.bin")}
    return {"rows": str(rows).encode(), **files}


@pytest.mark.decides
def test_the_same_program_sends_the_same_requests_and_the_run_stays_as_it_is(run: Path) -> None:
    before = content(run)
    result = replay(run, f"{ROLLOUT}-a0", [])
    assert result.differences == ()
    assert (result.rollout_id, result.exit_code) == (ROLLOUT, ExitCode.DONE)
    assert result.turns == {"recorded": 3, "replayed": 3}
    assert result.outcome == {"recorded": "policy.finished", "replayed": "policy.finished"}
    assert content(run) == before


def test_other_tools_are_the_first_difference(run: Path) -> None:
    result = replay(run, ROLLOUT, ["scenario=subagent"])
    assert result.exit_code == ExitCode.FAILURE_BUDGET
    first = result.differences[0]
    assert (first.branch, first.thread, first.turn, first.index) == ("main", "main", 0, 0)
    assert first.what == "tools"
    assert "Agent" in first.replayed
    assert "Agent" not in first.recorded


async def test_a_changed_prompt_is_the_first_difference(tmp_path: Path) -> None:
    stored = await record(run_config(tmp_path), tmp_path / "run", [LOOK, SUBMIT])
    with sqlite3.connect(tmp_path / "run" / "store.sqlite") as database:
        request = "replace(request, 'Solve the task', 'Do the task')"
        database.execute(f"UPDATE turn SET request = {request} WHERE turn_index = 0")
    database.close()
    result = await asyncio.to_thread(replay, tmp_path / "run", ROLLOUT, [])
    (only,) = result.differences
    assert (only.what, only.message, only.role) == ("message", 0, "system")
    assert (only.thread, only.turn, stored.turns) == ("main", 0, 2)
    assert only.recorded.startswith("Do the task")
    assert only.replayed.startswith("Solve the task")


def test_other_limits_are_a_difference_of_each_turn(run: Path) -> None:
    result = replay(run, ROLLOUT, ["harness.max_tokens=95"])
    assert [(d.what, d.turn) for d in result.differences] == [("limits", n) for n in range(3)]
    assert '"max_tokens": 95' in result.differences[0].replayed


def test_a_program_that_ends_early_misses_turns(run: Path) -> None:
    result = replay(run, ROLLOUT, ["harness.max_turns=1"])
    assert [(d.what, d.turn) for d in result.differences] == [("missing", 1), ("missing", 2)]
    assert result.outcome["replayed"] == "budget.turns"


async def test_a_program_that_goes_on_longer_asks_an_extra_turn(tmp_path: Path) -> None:
    config = run_config(tmp_path, "harness.max_turns=1")
    await record(config, tmp_path / "run", [LOOK])
    result = await asyncio.to_thread(replay, tmp_path / "run", ROLLOUT, ["harness.max_turns=2"])
    first = result.differences[0]
    assert (first.what, first.turn, first.branch) == ("extra", 1, "main")


async def test_sub_agents_get_their_recorded_answers(tmp_path: Path) -> None:
    config = run_config(tmp_path, "scenario=subagent")
    script = [SENT, LOOK, say("all is well"), SUBMIT]
    stored = await record(config, tmp_path / "run", script)
    assert stored.turns == 4
    result = await asyncio.to_thread(replay, tmp_path / "run", ROLLOUT, [])
    assert (result.differences, result.turns["replayed"]) == ((), 4)


async def test_the_first_message_that_differs_is_named_with_both_texts(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    clock = call("Bash", command="echo the time is $(date +%N)")
    await record(config, tmp_path / "run", [clock, SUBMIT])
    result = await asyncio.to_thread(replay, tmp_path / "run", ROLLOUT, [])
    (only,) = result.differences
    assert (only.what, only.turn, only.message, only.role) == ("message", 1, 0, "tool")
    assert only.recorded != only.replayed
    assert "the time is" in only.recorded
    assert "the time is" in only.replayed


def test_a_rollout_that_is_not_there_is_refused(run: Path) -> None:
    with pytest.raises(ReplayError, match="has no rollout train-9"):
        replay(run, "train-9", [])
