"""Pauses of the garbage collector: a collection does not walk through what one before it saw."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from runners.gateway import gc_tuning
from runners.gateway.gc_tuning import GcTuning


@pytest.fixture
def collector() -> Iterator[GcTuning]:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield GcTuning()
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.freeze()  # what tests/conftest.py has left out, too
    gc.set_threshold(*thresholds)


class Cycle:
    """An object that reference counts do not free."""

    def __init__(self) -> None:
        self.own = self


def test_a_full_collection_leaves_out_what_survived_the_one_before(
    collector: GcTuning,
) -> None:
    collector.freeze()
    held = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    gc.collect()
    assert all(each not in _walked() for each in map(id, held))
    assert gc.get_threshold() == gc_tuning.COLLECTIONS


@pytest.mark.integration
def test_cycles_that_were_left_out_are_freed_when_no_session_is_open(
    collector: GcTuning,
) -> None:
    collector.freeze()
    held = [Cycle() for _ in range(gc_tuning.LEFT_OUT)]
    freed = weakref.ref(held[0])
    gc.collect()
    held.clear()
    gc.collect()
    assert freed() is not None, "it was left out"
    collector.collect_rest(0)
    assert freed() is None
    assert not any(isinstance(each, Cycle) for each in gc.get_objects())
    assert len(_walked()) < gc_tuning.LEFT_OUT, "what survives is left out again"


def test_little_is_not_looked_for(collector: GcTuning) -> None:
    collector.freeze()
    freed = weakref.ref(held := Cycle())
    gc.collect()
    del held
    collector.collect_rest(0)
    assert freed() is not None


@pytest.mark.integration
def test_they_are_freed_after_many_sessions_where_one_is_always_open(
    collector: GcTuning,
) -> None:
    collector.freeze()
    freed = weakref.ref(held := Cycle())
    gc.collect()
    del held
    for _ in range(gc_tuning.ENDED - 1):
        collector.collect_rest(1)
    assert freed() is not None
    collector.collect_rest(1)
    assert freed() is None


@pytest.mark.integration
def test_the_more_sessions_are_open_the_rarer_is_the_long_pause(
    collector: GcTuning,
) -> None:
    collector.freeze()
    freed = weakref.ref(held := Cycle())
    gc.collect()
    del held
    for _ in range(2 * gc_tuning.ENDED):
        collector.collect_rest(gc_tuning.ENDED + 1)
    assert freed() is not None
    collector.collect_rest(gc_tuning.ENDED)
    assert freed() is None


def _walked() -> set[int]:
    """Return the objects that the next full collection walks through."""
    return {id(each) for each in gc.get_objects()}
