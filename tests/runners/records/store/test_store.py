"""The store returns what it was given, in order, and refuses contradictions."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.errors import ExitCode
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import RolloutRecord, Turn
from runners.records.routing import TurnRouting
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.records.store.tables import SCHEMA_VERSION
from tests.fakes.records import CONFIG, a_rollout, a_turn, write_session

STEP = 1
ROUTED = TurnRouting(0, np.arange(12, dtype=np.uint8).reshape(3, 2, 2), 16, 7, 0)


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "run", CONFIG)


def assert_same_turn(one: Turn, other: Turn) -> None:
    for field in fields(Turn):
        np.testing.assert_equal(getattr(one, field.name), getattr(other, field.name))


def test_the_configuration_comes_back_as_it_was_given(store: RunStore) -> None:
    assert store.config() == CONFIG
    with RunStore.open(store.run_dir, read_only=True) as reader:
        assert reader.config() == CONFIG


token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=40)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    return RunStore.create(tmp_path_factory.mktemp("shared"), CONFIG)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_session_comes_back_turn_for_turn(shared: RunStore, data: st.DataObject) -> None:
    session_id = f"s{len(shared.sessions())}"
    shared.add_session(session_id, {})
    turns = []
    for index in range(data.draw(st.integers(0, 4))):
        outputs = data.draw(token_ids)
        logprobs = st.floats(-50, 0, width=32)
        turn = a_turn(
            session_id,
            index,
            prompt_new=np.array(data.draw(token_ids), np.int32),
            output_ids=np.array(outputs, np.int32),
            output_logprobs=np.array([data.draw(logprobs) for _ in outputs], np.float32),
            break_reason=data.draw(st.none() | text),
            request=data.draw(st.dictionaries(text, json_values, max_size=3)),
            reply=data.draw(st.dictionaries(text, json_values, max_size=3)),
        )
        turns.append(turn)
        shared.add_turn(turn)
    found = shared.turns(session_id)
    assert len(found) == len(turns)
    for one, other in zip(found, turns, strict=True):
        assert_same_turn(one, other)
        assert one.prompt_new.dtype == np.int32
        assert one.output_logprobs.dtype == np.float32


def test_text_that_no_encoding_has_is_stored_with_a_replacement(store: RunStore) -> None:
    store.add_session("s", {"note": "\ud800"})
    store.add_turn(a_turn("s", request={"text": "half \ud83d and whole \ud83d\ude00", "n": 2**70}))
    store.put_rollout(a_rollout(final_message="\udcff", timings={"total": math.nan}))
    assert store.turns("s")[0].request == {"text": "half \ufffd and whole 😀", "n": float(2**70)}
    kept = store.rollout("train-000001-00-00")
    assert kept is not None
    assert kept.final_message == "\ufffd"
    assert list(kept.timings.values()) == [None]


def test_a_turn_of_an_unknown_session_is_refused(store: RunStore) -> None:
    with pytest.raises(StoreError):
        store.add_turn(a_turn("nobody"))


def test_turns_are_stored_together_or_not_at_all(store: RunStore) -> None:
    store.add_session("s", {})
    turns = [a_turn("s", index) for index in range(3)]
    with pytest.raises(StoreError):
        store.add_turns([(turn, ROUTED, None) for turn in (*turns, turns[0])])
    assert store.turns("s") == []
    store.add_turns([(turn, ROUTED if turn.index else None, None) for turn in turns])
    for one, other in zip(store.turns("s"), turns, strict=True):
        assert_same_turn(one, other)
    assert store.routing("s").keys() == {1, 2}


def test_a_turn_or_session_is_stored_once(store: RunStore) -> None:
    write_session(store, "s", 1)
    with pytest.raises(StoreError, match="already holds"):
        store.add_turn(a_turn("s", 0))
    with pytest.raises(StoreError, match="already holds"):
        store.add_session("s", {})
    assert len(store.turns("s")) == 1


def test_a_tail_that_a_crash_left_behind_is_never_read(store: RunStore) -> None:
    write_session(store, "s", 1)
    store.close()
    with (store.run_dir / "arrays" / "turns.bin").open("ab") as file:
        file.write(b"\xff" * 13)
    with RunStore.open(store.run_dir) as again:
        again.add_turn(a_turn("s", 1))
        assert_same_turn(again.turns("s")[0], a_turn("s", 0))
        assert_same_turn(again.turns("s")[1], a_turn("s", 1))


@pytest.mark.parametrize("damage", ["cut", "changed", "deleted"])
def test_arrays_that_the_disk_lost_are_refused(store: RunStore, damage: str) -> None:
    write_session(store, "s", 2)
    path = store.run_dir / "arrays" / "turns.bin"
    data = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(data[:-1])
        case "changed":
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "deleted":
            path.unlink()
    with pytest.raises(StoreError, match="lacks the arrays") as caught:
        store.turns("s")
    assert caught.value.exit_code == ExitCode.DATA_REFUSED


def test_only_one_process_adds_turns(store: RunStore) -> None:
    store.claim_arrays()
    with RunStore.open(store.run_dir) as other:
        other.add_session("s", {})
        with pytest.raises(StoreError, match="another process"):
            other.add_turn(a_turn("s"))
        store.close()
        other.add_turn(a_turn("s"))


def test_several_processes_add_turns_each_to_files_of_its_own(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    turns = {f"s{writer}": a_turn(f"s{writer}") for writer in range(3)}
    stores = [RunStore.create(run_dir, CONFIG), RunStore.open(run_dir), RunStore.open(run_dir)]
    for writer, store in enumerate(stores):
        store.claim_arrays(writer=writer)
    for store, (session_id, turn) in zip(stores, turns.items(), strict=True):
        store.add_session(session_id, {})
        store.add_turn(turn, ROUTED)
    with RunStore.open(run_dir) as late, pytest.raises(StoreError, match=r"turns-2\.bin is writ"):
        late.claim_arrays(writer=2)
    assert sorted(file.name for file in (run_dir / "arrays").iterdir()) == [
        "routing-1.bin", "routing-2.bin", "routing.bin", "turns-1.bin", "turns-2.bin", "turns.bin"
    ]  # fmt: skip
    with RunStore.open(run_dir, read_only=True) as reader:
        for session_id, turn in turns.items():
            assert_same_turn(reader.turns(session_id)[0], turn)
            assert np.array_equal(reader.routing(session_id)[0].experts, ROUTED.experts)


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("name", ["turns.bin", "turns-1.bin", "routing-1.bin"])
def test_verification_finds_what_any_writer_has_lost(
    store: RunStore, name: str, place: int
) -> None:
    with RunStore.open(store.run_dir) as second:
        second.claim_arrays(writer=1)
        for number in range(6):
            writer, session_id = (store, second)[number % 2], f"s{number}"
            writer.add_session(session_id, {})
            writer.add_turn(a_turn(session_id), ROUTED)
    store.verify_arrays()
    path = store.run_dir / "arrays" / name
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=f"{name} lacks the arrays"):
        store.verify_arrays()


def test_verification_reads_rollouts_that_a_later_step_may_train(store: RunStore) -> None:
    for step in (1, 2, 3):
        store.begin_step(step, [])
        store.finish_step(step, {})
        for member in range(3):
            record = a_rollout(f"train-{step:06}-00-{member:02}")
            store.add_session(record.session_id, {})
            store.add_turn(a_turn(record.session_id))
            store.put_rollout(record)
    path = store.run_dir / "arrays" / "turns.bin"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) * 4 // 9 + 20] ^= 1  # the second rollout of step 2
    path.write_bytes(damaged)
    store.verify_arrays(ahead=1)  # those of step 2 are trained
    with pytest.raises(StoreError, match="lacks the arrays"):
        store.verify_arrays(ahead=2)


def test_a_run_from_before_there_were_several_files_is_read_as_it_is(store: RunStore) -> None:
    write_session(store, "s", 2)
    store.close()
    with sqlite3.connect(store.run_dir / "store.sqlite") as db:
        db.execute("ALTER TABLE turn DROP COLUMN array_file")
        db.execute("ALTER TABLE routing DROP COLUMN array_file")
        db.execute("ALTER TABLE routing DROP COLUMN array_part")
    with RunStore.open(store.run_dir, read_only=True) as older:
        older.verify_arrays()
        assert_same_turn(older.turns("s")[1], a_turn("s", 1))
    with RunStore.open(store.run_dir) as resumed:
        resumed.claim_arrays(writer=1)
        resumed.add_turn(a_turn("s", 2))
        resumed.verify_arrays()
        for index, turn in enumerate(resumed.turns("s")):
            assert_same_turn(turn, a_turn("s", index))


def test_a_rollout_is_updated_in_place(store: RunStore) -> None:
    before = a_rollout(counts=False, reward=None, solved=None, verdict=None)
    store.put_rollout(before)
    assert store.rollouts() == [before]
    assert store.rollout(before.rollout_id) is None
    after = a_rollout(extra={"malformed": 1})
    store.put_rollout(after)
    assert store.rollouts() == [after]
    assert store.rollout(before.rollout_id) == after


def test_at_most_one_attempt_counts(store: RunStore) -> None:
    first = a_rollout()
    second = replace(first, attempt=1, session_id="train-000001-00-00-a1")
    store.put_rollout(first)
    store.put_rollout(second)
    assert store.rollout(first.rollout_id) == second
    assert store.rollouts(counts=False) == [replace(first, counts=False)]


outcomes = st.builds(
    Outcome, st.sampled_from(OutcomeCode), st.sampled_from(Stage), text, st.none() | text
)


@settings(max_examples=25, deadline=None)
@given(
    st.builds(
        replace,
        st.just(a_rollout()),
        outcome=outcomes,
        reward=st.none() | st.floats(-2, 2),
        solved=st.none() | st.booleans(),
        advantage=st.none() | st.floats(-9, 9),
        patch=text,
        verdict=st.none() | st.dictionaries(text, json_values, max_size=2),
        extra=st.dictionaries(text, json_values, max_size=2),
    )
)
def test_any_rollout_comes_back_as_it_was(shared: RunStore, record: RolloutRecord) -> None:
    shared.put_rollout(record)
    assert shared.rollout(record.rollout_id) == record


def test_rollouts_are_chosen_and_ordered(store: RunStore) -> None:
    ids = ["train-000002-00-00", "train-000001-01-00", "train-000001-00-01", "eval-000001-00-00"]
    for rollout_id in ids:
        store.put_rollout(a_rollout(rollout_id))
    assert [record.rollout_id for record in store.rollouts()] == sorted(ids, key=_order)
    chosen = store.rollouts(step=1, split="train", counts=True)
    assert [record.rollout_id for record in chosen] == ["train-000001-00-01", "train-000001-01-00"]
    assert store.rollouts(step=9) == []


def _order(rollout_id: str) -> tuple[str, str]:
    split, step, *rest = rollout_id.split("-")
    return step, split + "".join(rest)


def test_attempt_numbers_are_never_used_twice(store: RunStore) -> None:
    assert store.next_attempt("train-000001-00-00") == 0
    store.put_rollout(a_rollout())
    assert store.next_attempt("train-000001-00-00") == 1
    store.add_session("train-000001-00-00-a1", {})  # its driver died before it could record more
    store.add_session("train-000001-00-001-a7", {})
    assert store.next_attempt("train-000001-00-00") == 2


def test_a_step_finishes_once(store: RunStore) -> None:
    with pytest.raises(StoreError, match="never began"):
        store.finish_step(STEP, {})
    store.begin_step(STEP, ["a"])
    assert (store.steps()[0].state, store.steps()[0].metrics) == ("running", {})
    store.begin_step(STEP, ["a", "b"])
    store.finish_step(STEP, {"loss": math.nan, "reward": 0.5})
    with pytest.raises(StoreError, match="is finished"):
        store.finish_step(STEP, {})
    with pytest.raises(StoreError, match="is finished"):
        store.begin_step(STEP, [])
    (row,) = store.steps()
    assert (row.state, row.tasks) == ("done", ["a", "b"])
    assert row.metrics == {"loss": None, "reward": 0.5}
    assert row.finished_at is not None
    assert row.finished_at >= row.started_at


def test_an_evaluation_finishes_once(store: RunStore) -> None:
    store.finish_evaluation(0, {"solve_rate": 0.5})
    with pytest.raises(StoreError):
        store.finish_evaluation(0, {"solve_rate": 0.9})
    assert [(row.step, row.result) for row in store.evaluations()] == [(0, {"solve_rate": 0.5})]


def test_rewinding_drops_the_steps_after_it(store: RunStore) -> None:
    for step in (1, 2, 3):
        store.begin_step(step, ["t"])
        store.finish_step(step, {})
        store.finish_evaluation(step, {})
        store.put_rollout(a_rollout(f"train-{step:06}-00-00"))
        store.put_rollout(a_rollout(f"eval-{step:06}-00-00"))
    store.rewind(1)
    assert [row.step for row in store.steps()] == [1]
    assert [row.step for row in store.evaluations()] == [1]
    kept = {record.rollout_id for record in store.rollouts(counts=True)}
    # Step 2 was sampled by the weights that step 1 has left.
    assert kept == {"train-000001-00-00", "eval-000001-00-00", "train-000002-00-00"}
    assert len(store.rollouts()) == 6
    store.begin_step(2, ["t"])
    store.finish_step(2, {})


def test_events_keep_their_order_and_kind(store: RunStore) -> None:
    store.event("retry", {"n": 1})
    store.event("resume", {})
    store.event("retry", {"n": 2})
    assert [row.data for row in store.events("retry")] == [{"n": 1}, {"n": 2}]
    assert [row.kind for row in store.events()] == ["retry", "resume", "retry"]


def test_a_run_moves_through_its_states(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.state().state is State.CREATED
    assert not store.state().driven
    store.set_state("running", wall_s=1.5)
    assert store.state().driven
    assert store.state().info == {"wall_s": 1.5}
    before = store.state().heartbeat_at
    assert before is not None
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: before + 10)
        store.heartbeat()
    assert store.state().heartbeat_at == before + 10
    store.set_state(State.FAILED, exit_code=4, message="engine [gone]")
    assert (store.state().exit_code, store.state().message) == (4, "engine [gone]")
    store.set_state(State.RUNNING)
    store.set_state(State.DONE, exit_code=0)
    with pytest.raises(StoreError, match="is done and cannot become failed"):
        store.set_state(State.FAILED)
    store.set_state(State.RUNNING)  # a finished run may get more steps


def test_a_directory_with_a_run_is_refused_for_a_new_one(store: RunStore) -> None:
    with pytest.raises(StoreError, match="--resume") as caught:
        RunStore.create(store.run_dir, {"other": True})
    assert caught.value.exit_code == ExitCode.USAGE
    assert store.config() == CONFIG


def test_an_interrupted_creation_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").touch()
    with pytest.raises(StoreError, match="not the store of a run"):
        RunStore.open(tmp_path)
    with RunStore.create(tmp_path, CONFIG) as store:
        assert store.config() == CONFIG


def no_directory(path: Path) -> None:
    pass


def empty_directory(path: Path) -> None:
    path.mkdir()


def garbage(path: Path) -> None:
    path.mkdir()
    (path / "store.sqlite").write_bytes(b"not a database at all" * 200)


def foreign_database(path: Path) -> None:
    path.mkdir()
    with sqlite3.connect(path / "store.sqlite") as db:
        db.execute("CREATE TABLE run (config TEXT)")


def newer_schema(path: Path) -> None:
    RunStore.create(path, CONFIG).close()
    with sqlite3.connect(path / "store.sqlite") as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (no_directory, "holds no run"),
        (empty_directory, "holds no run"),
        (garbage, "is damaged"),
        (foreign_database, "not the store of a run"),
        (newer_schema, "newer"),
    ],
)
def test_a_directory_without_a_readable_run_is_refused_with_the_reason(
    tmp_path: Path, make: Callable[[Path], None], says: str, read_only: bool
) -> None:
    make(tmp_path / "run")
    with pytest.raises(StoreError, match=says) as caught:
        RunStore.open(tmp_path / "run", read_only=read_only)
    assert caught.value.exit_code == ExitCode.DATA_REFUSED


def test_a_reader_writes_nothing(store: RunStore) -> None:
    with RunStore.open(store.run_dir, read_only=True) as reader:
        attempts: list[Callable[[], Any]] = [
            lambda: reader.event("x", {}),
            lambda: reader.put_rollout(a_rollout()),
            lambda: reader.set_state("running"),
        ]
        for attempt in attempts:
            with pytest.raises(StoreError, match="cannot be written"):
                attempt()


def test_a_run_directory_is_its_users_alone(tmp_path: Path) -> None:
    RunStore.create(tmp_path / "run", {}).close()
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
