"""Names of a session's counters: each is one that the gateway counts, and old stores are read."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from runners.records.session_summary import EARLIER_NAMES, STORED_COUNTERS, rename_counters
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout


def test_every_earlier_name_stands_for_a_counter_of_today() -> None:
    assert set(EARLIER_NAMES.values()) <= set(STORED_COUNTERS)
    assert not set(EARLIER_NAMES) & set(STORED_COUNTERS)


def test_other_keys_keep_their_names() -> None:
    metrics = {"rollout/unread": 1, "unread": 2, "rollout/forks": 3}
    assert rename_counters(metrics, "rollout/") == {
        "rollout/parser_fallbacks": 1,
        "unread": 2,
        "rollout/forks": 3,
    }


def test_a_store_with_earlier_names_is_read_with_todays(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, CONFIG) as store:
        store.put_rollout(a_rollout())
        store.begin_step(1, [])
    old = {"session": {"unread": 2, "tito_mismatches": 1, "forks": 3}}
    with sqlite3.connect(tmp_path / "store.sqlite") as database:
        database.execute("UPDATE rollout SET extra = ?", [json.dumps(old)])
        database.execute(
            "UPDATE step SET finished_at = 1, metrics = ?", [json.dumps({"rollout/unread": 2})]
        )
    database.close()
    with RunStore.open(tmp_path, read_only=True) as store:
        (record,) = store.each_rollout()
        (step,) = store.steps()
    assert record.extra["session"] == {
        "parser_fallbacks": 2,
        "retokenization_mismatches": 1,
        "forks": 3,
    }
    assert step.metrics == {"rollout/parser_fallbacks": 2}
