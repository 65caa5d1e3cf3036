"""Stored routing: what goes in comes out, belongs to its tokens; old stores learn to hold it."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runners.records.graph import build_segments
from runners.records.routing import (
    RoutingError,
    RoutingShape,
    TurnRouting,
    build_segment_routing,
    build_turn_routing,
    checksum_tokens,
    make_unrouted,
)
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.records.store.tables import SCHEMA_VERSION
from tests.fakes.records import CONFIG, a_turn

SESSION = "train-000001-00-00-a0"
SHAPE = RoutingShape(layers=2, top_k=2, experts=300, routed=(0, 1))
TURNS = [a_turn(index=0), a_turn(index=1)]
PATHS = [np.array([1, 2, 3, 100, 7], np.int32), np.array([1, 2, 3, 100, 7, 4, 5, 101, 7], np.int32)]
STARTS = (0, 4)


def routing(turn: int, shape: RoutingShape = SHAPE, seed: int = 0) -> TurnRouting:
    """Return random rows of a turn, for the positions that the turns before it do not have."""
    path, start = PATHS[turn], STARTS[turn]
    size = (len(path) - 1 - start, shape.layers)
    scores = np.random.default_rng([seed, turn]).random((*size, shape.experts))
    flat = scores.argsort(-1)[..., : shape.top_k].astype(np.int32).ravel()
    return build_turn_routing(flat, path, start, shape, TURNS[turn].weight_version)


def same(one: TurnRouting, other: TurnRouting) -> bool:
    """Return whether two are equal, arrays and their dtypes included."""
    return (
        np.array_equal(one.experts, other.experts)
        and one.experts.dtype == other.experts.dtype
        and replace(one, experts=other.experts) == other
    )


@pytest.mark.parametrize("experts", [255, 256, 257, 300])
def test_stored_routing_is_read_back_the_same(tmp_path: Path, experts: int) -> None:
    shape = replace(SHAPE, experts=experts)
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        store.add_session(SESSION, {})
        store.add_turn(TURNS[0], routing(0, shape))
        store.add_turn(TURNS[1])
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        held = store.routing(SESSION)
        assert store.routing("another") == {}
    assert list(held) == [0]
    assert same(held[0], routing(0, shape))
    assert held[0].experts.itemsize == (1 if experts <= 256 else 2)


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_store_is_read_without_routing_and_holds_it_once_it_is_opened_to_write(
    tmp_path: Path, version: int
) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        store.add_session(SESSION, {})
        store.add_turn(TURNS[0])
    with sqlite3.connect(tmp_path / "run" / "store.sqlite") as db:
        db.execute("DROP TABLE routing")
        db.execute("DROP TABLE schedule")
        db.execute("DROP TABLE wire")
        db.execute("DROP TABLE agreement")
        if version == 1:
            db.execute("DROP TABLE ledger")
        db.execute(f"PRAGMA user_version = {version}")
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert store.routing(SESSION) == {}
        assert len(store.turns(SESSION)) == 1
    with RunStore.open(tmp_path / "run") as store:
        store.add_turn(TURNS[1], routing(1))
        assert store.query("PRAGMA user_version")[0][0] == SCHEMA_VERSION
        assert same(store.routing(SESSION)[1], routing(1))


def test_lost_rows_are_refused(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        store.add_session(SESSION, {})
        store.add_turn(TURNS[0], routing(0))
    file = tmp_path / "run" / "arrays" / "routing.bin"
    damaged = bytearray(file.read_bytes())
    damaged[3] ^= 1
    file.write_bytes(damaged)
    with (
        RunStore.open(tmp_path / "run", read_only=True) as store,
        pytest.raises(StoreError, match=r"routing\.bin lacks the arrays"),
    ):
        store.routing(SESSION)


def test_a_segment_has_the_rows_of_its_turns_at_their_tokens() -> None:
    (segment,) = build_segments(TURNS)
    parts = {0: routing(0), 1: routing(1)}
    found = build_segment_routing(segment, parts, SHAPE)
    assert found.valid.tolist() == [True] * 8 + [False]
    wanted = np.concatenate([parts[0].experts, parts[1].experts])
    assert np.array_equal(found.experts[:8], wanted)


def test_a_turn_without_rows_between_others_moves_none_of_theirs() -> None:
    """A list with an entry per turn that has rows would give turn 1's to turn 0."""
    (segment,) = build_segments(TURNS)
    found = build_segment_routing(segment, {1: routing(1)}, SHAPE)
    assert found.valid.tolist() == [False] * 4 + [True] * 4 + [False]
    assert np.array_equal(found.experts[4:8], routing(1).experts)


def test_rows_of_other_tokens_or_another_model_are_refused() -> None:
    (segment,) = build_segments(TURNS)
    shifted = replace(routing(0), start=1)
    with pytest.raises(RoutingError, match=rf"turn 0 of session {SESSION} belongs to other tokens"):
        build_segment_routing(segment, {0: shifted}, SHAPE)
    with pytest.raises(RoutingError, match="belongs to other tokens"):
        build_segment_routing(segment, {0: replace(routing(0), tokens_crc=1)}, SHAPE)
    for other in (replace(SHAPE, layers=1), replace(SHAPE, experts=301)):
        with pytest.raises(RoutingError, match="the policy 2 layers and 2 of 300"):
            build_segment_routing(segment, {0: routing(0, other)}, SHAPE)


def test_rows_are_as_many_as_were_asked_for_and_name_experts_that_exist() -> None:
    path, flat = PATHS[0], routing(0).experts.astype(np.int32).ravel()
    with pytest.raises(ValueError, match="16 ids of experts for 3 tokens"):
        build_turn_routing(flat, path, 1, SHAPE, 0)
    for wrong in (300, -1):
        flat[5] = wrong
        with pytest.raises(ValueError, match="there are 300"):
            build_turn_routing(flat, path, 0, SHAPE, 0)


@pytest.mark.parametrize("experts", [2, 8, 256, 257])
def test_unrouted_rows_have_distinct_experts_in_equal_shares(
    experts: int,
) -> None:
    nothing = make_unrouted(RoutingShape(3, 2, experts, routed=(0, 1, 2)), 4 * experts)
    assert not nothing.valid.any()
    assert (np.diff(np.sort(nothing.experts, axis=-1), axis=-1) > 0).all()
    assert len(set(np.bincount(nothing.experts.ravel()).tolist())) == 1
    assert len(make_unrouted(RoutingShape(3, 2, experts, routed=()), 0).experts) == 0


def test_a_checksum_detects_shifted_or_exchanged_tokens() -> None:
    tokens = np.arange(5, dtype=np.int32)
    sums = {checksum_tokens(t) for t in (tokens, tokens[1:], tokens[::-1], np.roll(tokens, 1))}
    assert len(sums) == 4
