"""Attempts in flight say where they are, and what they waited for when something ended them."""

from __future__ import annotations

import asyncio

import pytest

from runners.diagnostics.attempt_progress import AttemptWatch, Flight


def test_an_attempt_is_in_flight_for_the_time_of_its_block() -> None:
    watch = AttemptWatch()
    with watch.attempt("one"), watch.attempt("two") as second:
        assert [flight.session_id for flight in watch.in_flight()] == ["one", "two"]
        assert second.task is None  # there is no loop
    assert watch.in_flight() == []


def test_it_leaves_however_it_ends() -> None:
    watch = AttemptWatch()
    with pytest.raises(ZeroDivisionError), watch.attempt("one"):
        raise ZeroDivisionError
    assert watch.in_flight() == []


def test_a_stage_is_a_sign_of_progress_and_is_timed() -> None:
    flight = Flight("one", None)
    first = flight.last_sign
    flight("boot")
    assert flight.stage == "boot"
    assert flight.last_sign > first
    flight("harness")
    flight("boot")
    timings = flight.timings()
    assert list(timings) == ["boot", "harness"]
    assert all(spent > 0 for spent in timings.values())


def test_a_beat_is_a_sign_of_progress_within_a_stage() -> None:
    flight = Flight("one", None)
    flight("harness")
    before = flight.last_sign
    flight.beat()
    assert flight.last_sign > before
    assert flight.stage == "harness"


async def hang() -> None:
    await asyncio.Event().wait()


async def test_a_deadline_keeps_what_was_pending_when_it_expired() -> None:
    with AttemptWatch().attempt("one") as flight:
        with pytest.raises(TimeoutError):
            async with flight.deadline(0.01) as timeout:
                await hang()
        assert timeout.expired()
        assert " in hang\n" in flight.pending


async def test_a_deadline_that_is_met_leaves_nothing_behind() -> None:
    with AttemptWatch().attempt("one") as flight:
        async with flight.deadline(0.01):
            pass
        await asyncio.sleep(0.03)
        assert flight.pending == ""


async def test_the_outer_deadline_keeps_what_was_pending_in_the_inner_one() -> None:
    with AttemptWatch().attempt("one") as flight:
        with pytest.raises(TimeoutError):
            async with flight.deadline(0.01), flight.deadline(1000):
                await hang()
        assert " in hang\n" in flight.pending


async def test_what_all_attempts_wait_for_is_kept_before_they_are_cancelled() -> None:
    watch, kept = AttemptWatch(), []

    async def attempt() -> None:
        with watch.attempt("one") as flight:
            try:
                await hang()
            finally:
                kept.append(flight.pending)

    task = asyncio.create_task(attempt(), name="attempt")
    await asyncio.sleep(0)
    assert [flight.task for flight in watch.in_flight()] == [task]
    watch.keep_pending()
    task.cancel()
    await asyncio.wait([task])
    assert " in hang\n" in kept[0]
