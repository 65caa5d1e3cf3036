"""Pauses of the garbage collector: a collection does not walk through what one before it saw."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from runners.gateway import garbage
from runners.gateway.garbage import GarbageCollector


@pytest.fixture
def collector() -> Iterator[GarbageCollector]:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield GarbageCollector()
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.freeze()  # what tests/conftest.py has left out, too
    gc.set_threshold(*thresholds)


class Cycle:
    """An object that reference counts do not free."""

    def __init__(self) -> None:
        self.own = self


def test_a_full_collection_leaves_out_what_survived_the_one_before(
    collector: GarbageCollector,
) -> None:
    collector.bound_pauses()
    held = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    gc.collect()
    assert all(each not in _walked() for each in map(id, held))
    assert gc.get_threshold() == garbage.COLLECTIONS


def test_cycles_that_were_left_out_are_freed_when_no_session_is_open(
    collector: GarbageCollector,
) -> None:
    collector.bound_pauses()
    held = [Cycle() for _ in range(garbage.LEFT_OUT)]
    freed = weakref.ref(held[0])
    gc.collect()
    held.clear()
    gc.collect()
    assert freed() is not None, "it was left out"
    collector.collect_rest(0)
    assert freed() is None
    assert not any(isinstance(each, Cycle) for each in gc.get_objects())
    assert len(_walked()) < garbage.LEFT_OUT, "what survives is left out again"


def test_a_process_without_sessions_leaves_out_only_what_was_there_at_its_start(
    collector: GarbageCollector,
) -> None:
    before = Cycle()
    collector.leave_out()
    freed = weakref.ref(held := Cycle())
    gc.collect()
    assert id(before) not in _walked()
    del held
    gc.collect()
    assert freed() is None


def test_little_is_not_looked_for(collector: GarbageCollector) -> None:
    collector.bound_pauses()
    freed = weakref.ref(held := Cycle())
    gc.collect()
    del held
    collector.collect_rest(0)
    assert freed() is not None


def test_they_are_freed_after_many_sessions_where_one_is_always_open(
    collector: GarbageCollector,
) -> None:
    collector.bound_pauses()
    freed = weakref.ref(held := Cycle())
    gc.collect()
    del held
    for _ in range(garbage.ENDED - 1):
        collector.collect_rest(1)
    assert freed() is not None
    collector.collect_rest(1)
    assert freed() is None


def test_the_more_sessions_are_open_the_rarer_is_the_long_pause(
    collector: GarbageCollector,
) -> None:
    collector.bound_pauses()
    freed = weakref.ref(held := Cycle())
    gc.collect()
    del held
    for _ in range(2 * garbage.ENDED):
        collector.collect_rest(garbage.ENDED + 1)
    assert freed() is not None
    collector.collect_rest(garbage.ENDED)
    assert freed() is None


def _walked() -> set[int]:
    """Return the objects that the next full collection walks through."""
    return {id(each) for each in gc.get_objects()}
