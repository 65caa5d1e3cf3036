"""Attempts in attempt say where they are, and what they waited for when something ended them."""

from __future__ import annotations

import asyncio

import pytest

from runners.system.diagnostics.attempt_progress import AttemptProgress, AttemptWatch


def test_an_attempt_is_in_flight_for_the_time_of_its_block_even_if_it_fails() -> None:
    watch = AttemptWatch()
    with watch.attempt("one"), watch.attempt("two") as second:
        assert [attempt.session_id for attempt in watch.in_flight()] == ["one", "two"]
        assert second.task is None  # there is no loop
    with pytest.raises(ZeroDivisionError), watch.attempt("three"):
        raise ZeroDivisionError
    assert watch.in_flight() == []


def test_a_stage_is_a_sign_of_progress_and_is_timed() -> None:
    attempt = AttemptProgress("one", None)
    first = attempt.last_sign
    attempt.enter("boot")
    assert attempt.stage == "boot"
    assert attempt.last_sign > first
    attempt.enter("harness")
    attempt.enter("boot")
    timings = attempt.timings()
    assert list(timings) == ["boot", "harness"]
    assert all(spent > 0 for spent in timings.values())


async def hang() -> None:
    await asyncio.Event().wait()


async def test_a_deadline_keeps_what_was_pending_when_it_expired() -> None:
    with AttemptWatch().attempt("one") as attempt:
        async with attempt.deadline(0.01):
            pass
        await asyncio.sleep(0.03)
        assert attempt.pending == "", "one that is met keeps nothing"
        with pytest.raises(TimeoutError):
            async with attempt.deadline(0.01) as outer, attempt.deadline(1000):
                await hang()
        assert outer.expired()
        assert " in hang\n" in attempt.pending


async def test_what_all_attempts_wait_for_is_kept_before_they_are_cancelled() -> None:
    watch, kept = AttemptWatch(), []

    async def attempt() -> None:
        with watch.attempt("one") as attempt:
            try:
                await hang()
            finally:
                kept.append(attempt.pending)

    task = asyncio.create_task(attempt(), name="attempt")
    await asyncio.sleep(0)
    assert [attempt.task for attempt in watch.in_flight()] == [task]
    watch.record_pending()
    task.cancel()
    await asyncio.wait([task])
    assert " in hang\n" in kept[0]
