"""A run with rollouts of every kind, and its search index outside of the run's directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runners.observe.viewer.search_index import SearchIndex
from runners.records.record import WireExchange
from runners.records.routing import (
    NO_ROW,
    RoutingShape,
    TokenAgreement,
    build_turn_routing,
    checksum_tokens,
)
from runners.records.store.run_store import RunStore
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


TIMED = "train-000003-000-00"
TIMINGS = {
    **{"queue": 2.0, "session": 0.5, "boot": 1.0, "harness": 6.0, "patch": 0.2, "teardown": 0.3},
    "grade": 3.0,
}


def write_timed_rollout(run_dir: Path) -> None:
    """Write a rollout of three turns, one of them a sub-agent's, whose session opened at 1000 s."""
    with RunStore.open(run_dir) as store:
        record = replace(a_rollout(TIMED), timings=TIMINGS)
        store.add_session(record.session_id, {})
        store.database.execute(
            "UPDATE session SET created_at = 1000.0 WHERE session_id = ?", (record.session_id,)
        )
        first = a_turn(record.session_id, 0, started_at=1001.5, total_s=1.0, engine_s=0.25)
        helper = a_turn(
            *(record.session_id, 1),
            thread="helper", branch="subagent", segment=1, parent=None, prompt_kept=0,
            started_at=1003.0, weight_version=4, break_reason="\x1b[2J" + "x" * 5000,
        )  # fmt: skip
        last = a_turn(
            *(record.session_id, 2), parent=0, prompt_kept=5, started_at=1004.0,
            weight_version=4, finish_reason="abort",
        )  # fmt: skip
        for turn in (first, helper, last):
            store.add_turn(turn)
        store.put_rollout(record)
        store.event("routing_refused", {"rollout_id": TIMED, "reason": "\x1b[2J"})
        store.event("teardown_failed", {"session_id": "another"})


ROUTED = "train-000003-000-00"


def write_routed_rollout(run_dir: Path) -> None:
    """Write a rollout of two turns, the first one with experts; training's router was compared for
    all tokens but the third and the last.
    """
    shape = RoutingShape(1, 1, 4, routed=(0,))
    record = a_rollout(ROUTED)
    first, second = (a_turn(record.session_id, index) for index in range(2))
    path = np.concatenate([first.prompt_new, first.output_ids])
    whole = np.concatenate([path, second.prompt_new, second.output_ids])
    routing = build_turn_routing(np.zeros(4, np.int32), path, 0, shape, first.weight_version)
    percent = np.array([100, 87, NO_ROW, 100, 50, 60, 70, 80], np.uint8)
    agreement = TokenAgreement("", checksum_tokens(whole[:8]), percent)
    other = TokenAgreement("", checksum_tokens(path[1:3]), percent[:2])
    with RunStore.open(run_dir) as store:
        store.add_session(record.session_id, {})
        store.add_turn(first, routing)
        store.add_turn(second)
        store.put_rollout(record)
        store.put_agreements([(record.session_id, other), (record.session_id, agreement)])


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
