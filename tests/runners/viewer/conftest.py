"""A run with rollouts of every kind, and its search index outside of the run's directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runners.store.run_store import RunStore
from runners.trajectory.wire import WireExchange
from runners.viewer.search_index import SearchIndex
from tests.fakes.records import a_rollout, a_turn, branched_turns, example_run, write_session

LOG = "test_sum\nTraceback\nKeyError: 'grape'\n"
BRANCHES = {"session": {"branches": {"main": 2, "subagent": 1}}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The example run, and a branched rollout of an evaluation and of a second step."""
    with example_run(tmp_path / "run") as store:
        add_branched(store, "train-000002-000-00")
        write_session(store, "eval-000001-003-00-a0", 2)
        verdict = {
            "reason": "1 of 1 fail",
            "tests": {"failed": ["test_sum"]},
            "log": LOG,
            "fail_to_pass": [0, 1],
        }
        store.put_rollout(
            a_rollout(
                "eval-000001-003-00", task_id="held[1]", reward=0.0, solved=False, verdict=verdict
            )
        )
    return tmp_path / "run"


HOSTILE_WIRE = b'{"a": "</script><img src=x onerror=owned>\\u202e", "metadata": {"user_id": "u"}}'


def add_wired(store: RunStore, rollout_id: str, request: bytes = HOSTILE_WIRE) -> None:
    """Add a rollout whose first turn of two was recorded as it was on the wire."""
    record = a_rollout(rollout_id)
    store.add_session(record.session_id, {})
    headers = [("anthropic-beta", "<b>"), ("x-api-key", "***")]
    wire = WireExchange("/v1/messages", headers, request, len(request), b'{"id":1}', 8)
    store.add_turn(a_turn(record.session_id, 0), wire=wire)
    store.add_turn(a_turn(record.session_id, 1))
    store.put_rollout(record)


def add_branched(store: RunStore, rollout_id: str) -> None:
    """Add a rollout with a sub-agent and a compaction, whose patch returns a cloud."""
    record = a_rollout(rollout_id, turns=8, patch="+++ b/x.py\n@@ -1 +1 @@\n+return cloud(apple)\n")
    store.add_session(record.session_id, {})
    for turn in branched_turns(record.session_id):
        store.add_turn(turn)
    store.put_rollout(replace(record, extra=BRANCHES, timings={"total": 9.0}))


@pytest.fixture
def store(run_dir: Path) -> Iterator[RunStore]:
    """The run's store, with the index attached."""
    index = SearchIndex(run_dir)
    index.update()
    with RunStore.open(run_dir, read_only=True) as store:
        index.attach(store)
        yield store
