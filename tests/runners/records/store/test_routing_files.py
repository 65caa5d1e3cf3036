"""Routing lies in parts, which are deleted once nothing that they hold is needed."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runners.records.routing import TurnRouting
from runners.records.store.routing_files import PART_BYTES
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from tests.fakes.records import CONFIG, a_turn

ROUTED = TurnRouting(0, np.arange(12, dtype=np.uint8).reshape(3, 2, 2), 16, 7, 0)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "run", CONFIG)


def routing_of(number: int) -> TurnRouting:
    return replace(ROUTED, experts=ROUTED.experts + number)


def add(store: RunStore, session: str, number: int = 0) -> None:
    if session not in store.sessions():
        store.add_session(session, {})
    store.add_turn(a_turn(session, number), routing_of(number))


def fill(store: RunStore, name: str, size: int = PART_BYTES) -> None:
    """Let a file of routing have as much as a part can have, or so much; the file has a hole."""
    os.truncate(store.run_dir / "arrays" / name, size)


def reopen(store: RunStore, writer: int = 0) -> RunStore:
    store.close()
    opened = RunStore.open(store.run_dir)
    opened.claim_arrays(writer=writer)
    return opened


def files(store: RunStore) -> list[str]:
    return sorted(path.name for path in (store.run_dir / "arrays").glob("routing*"))


def test_a_full_part_is_followed_by_the_next_and_both_are_read(store: RunStore) -> None:
    for number in range(3):
        add(store, "s", number)
        fill(store, f"routing.{number}.bin" if number else "routing.bin")
        store = reopen(store)
    add(store, "s", 3)
    add(store, "s", 4)
    assert files(store) == ["routing.1.bin", "routing.2.bin", "routing.3.bin", "routing.bin"]
    found = store.routing("s")
    assert [int(found[turn].experts[0, 0, 0]) for turn in range(5)] == [0, 1, 2, 3, 4]
    store.verify_arrays()


def test_a_part_grows_over_its_end_within_one_process_too(store: RunStore) -> None:
    add(store, "s", 0)
    fill(store, "routing.bin")
    store = reopen(store)
    add(store, "s", 1)  # opens the next part
    add(store, "s", 2)
    assert files(store) == ["routing.1.bin", "routing.bin"]


def test_a_part_is_complete_only_when_the_rows_of_all_it_holds_are_there(store: RunStore) -> None:
    add(store, "s", 0)
    fill(store, "routing.bin", PART_BYTES - 1)
    store = reopen(store)
    store.add_turns([(a_turn("s", turn), routing_of(turn), None) for turn in (1, 2)])
    # the second one in another part would have begun it before the row of the first one came
    assert files(store) == ["routing.bin"]
    add(store, "s", 3)
    assert files(store) == ["routing.1.bin", "routing.bin"]
    found = store.routing("s")
    assert [int(found[turn].experts[0, 0, 0]) for turn in range(4)] == [0, 1, 2, 3]


def test_a_part_is_released_when_nobody_needs_a_session_in_it(store: RunStore) -> None:
    for name in ("old", "new"):
        add(store, name, 0)
    fill(store, "routing.bin")
    store = reopen(store)
    add(store, "newest", 0)
    assert store.release_routing(lambda session: session == "new") == []
    assert store.routed_sessions() == {"old", "new", "newest"}
    gone = store.release_routing(lambda session: False)
    assert [path.name for path in gone] == ["routing.bin"]  # the newest may grow
    assert store.routed_sessions() == {"newest"}
    assert store.routing("old") == {}
    assert len(store.turns("old")) == 1  # its tokens stay


def test_each_writer_keeps_its_newest_part(store: RunStore) -> None:
    add(store, "a", 0)
    with RunStore.open(store.run_dir) as second:
        second.claim_arrays(writer=12)
        add(second, "b", 0)
    fill(store, "routing-12.bin")
    with RunStore.open(store.run_dir) as second:
        second.claim_arrays(writer=12)
        add(second, "c", 0)
    gone = store.release_routing(lambda session: False)
    assert [path.name for path in gone] == ["routing-12.bin"]
    assert store.routed_sessions() == {"a", "c"}


def test_files_of_a_driver_that_died_before_it_deleted_them_are_released_again(
    store: RunStore,
) -> None:
    add(store, "old", 0)
    fill(store, "routing.bin")
    store = reopen(store)
    add(store, "new", 0)
    first = store.release_routing(lambda session: session == "new")
    store = reopen(store)
    assert store.release_routing(lambda session: True) == first
    for path in first:
        path.unlink()
    assert store.release_routing(lambda session: True) == []


def test_a_session_is_routed_as_a_whole_or_not_at_all(store: RunStore) -> None:
    add(store, "straddling", 0)
    fill(store, "routing.bin")
    store = reopen(store)
    add(store, "straddling", 1)
    add(store, "new", 0)
    assert store.routed_turns("straddling") == {0, 1}
    store.release_routing(lambda session: session == "new")
    assert store.routed_sessions() == {"new"}


def test_no_reader_holds_a_part_open(store: RunStore) -> None:
    """Not even a viewer of another process, while which a deleted file would take its space."""
    add(store, "old", 0)
    fill(store, "routing.bin")
    store = reopen(store)
    add(store, "new", 0)
    with RunStore.open(store.run_dir, read_only=True) as reader:
        assert len(reader.routing("old")) == 1
        [path] = store.release_routing(lambda session: session == "new")
        open_files = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        assert str(path) not in [str(each.readlink()) for each in open_files]


def test_routing_that_is_deleted_while_it_is_read_is_left_out(store: RunStore) -> None:
    add(store, "old", 0)
    fill(store, "routing.bin")
    store = reopen(store)
    add(store, "new", 0)

    def delete_meanwhile(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> sqlite3.Row:
        if any(column[0] == "array_part" for column in cursor.description):
            for path in store.release_routing(lambda session: session == "new"):
                path.unlink()
        return sqlite3.Row(cursor, row)

    with RunStore.open(store.run_dir, read_only=True) as reader:
        reader._db._db.row_factory = delete_meanwhile
        assert reader.routing("old") == {}
    (store.run_dir / "arrays" / "routing.1.bin").unlink()
    with pytest.raises(StoreError, match="lacks the arrays"):
        store.routing("new")  # which is lost: its row is there


def test_the_ends_of_every_part_are_verified(store: RunStore) -> None:
    add(store, "old", 0)
    add(store, "old too", 0)  # further back than any of the new part
    fill(store, "routing.bin")
    store = reopen(store)
    add(store, "young", 0)
    store.add_session("unrouted", {})
    store.add_turn(a_turn("unrouted"))  # the last turn, which is verified in any case
    store.verify_arrays()
    os.truncate(store.run_dir / "arrays" / "routing.1.bin", 3)
    with pytest.raises(StoreError, match=r"routing\.1\.bin lacks"):
        store.verify_arrays()
