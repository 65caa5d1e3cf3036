"""Rate limits, concurrency limits and backoff, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.system.concurrency.limits import (
    BACKOFF_MAX_S,
    BACKOFF_S,
    Admission,
    TokenBucket,
    backoff_s,
)
from tests.fakes.virtual_time import in_virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


# --- token bucket -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Taker:
    """Somebody who wants a token from ``at`` on, and leaves after ``patience``."""

    at: int
    patience: float | None


TAKERS = st.lists(
    st.builds(
        Taker, st.integers(0, 30), st.none() | st.integers(0, 20).map(lambda whole: whole + 0.5)
    ),
    max_size=25,
).map(lambda takers: sorted(takers, key=lambda taker: taker.at))


@in_virtual_time
async def taken(bucket: TokenBucket, takers: Sequence[Taker]) -> list[float | None]:
    """When each got its token, None if it left."""

    async def take(taker: Taker) -> float | None:
        try:
            async with asyncio.timeout(taker.patience):
                await bucket.take()
        except TimeoutError:
            return None
        return now()

    tasks = []
    for taker in takers:
        await asyncio.sleep(taker.at - now())
        tasks.append(asyncio.create_task(take(taker)))
    return await asyncio.gather(*tasks)


def expected(interval: int, takers: Sequence[Taker]) -> list[float | None]:
    """One token per interval, in the order of coming."""
    due, times = 0.0, list[float | None]()
    for taker in takers:
        given = max(float(taker.at), due)
        if taker.patience is not None and given > taker.at + taker.patience:
            times.append(None)
            continue
        due = given + interval
        times.append(given)
    return times


@given(interval=st.sampled_from([1, 2, 4]), takers=TAKERS)
def test_tokens_come_at_the_rate_in_order_and_cancelled_takers_use_none(
    interval: int, takers: list[Taker]
) -> None:
    assert taken(TokenBucket(1 / interval), takers) == expected(interval, takers)


def test_without_a_rate_nothing_waits() -> None:
    assert taken(TokenBucket(None), [Taker(3, None)] * 100) == [3.0] * 100


@in_virtual_time
async def test_simultaneous_takers_are_spaced_out() -> None:
    bucket, times = TokenBucket(4.0), list[float]()
    for _ in range(4):
        await bucket.take()
        times.append(now())
    assert times == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_bucket_that_never_gives_a_token_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="no token would come"):
        TokenBucket(rate)


# --- admission --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """Somebody who comes at ``at`` and is served for ``lasts``; times are such that nobody leaves,
    or complains, in the moment in which another is admitted.
    """

    at: int
    lasts: int
    patience: float | None
    pushed_back: bool


CALLS = st.lists(
    st.builds(
        Call,
        st.integers(0, 8),
        st.integers(1, 6),
        st.none() | st.integers(0, 9).map(lambda whole: whole + 0.5),
        st.booleans(),
    ),
    max_size=30,
).map(lambda calls: sorted(calls, key=lambda call: call.at))


@given(most=st.integers(1, 6), adaptive=st.booleans(), calls=CALLS)
@in_virtual_time
async def test_calls_are_admitted_in_order_and_never_beyond_the_limit(
    most: int, adaptive: bool, calls: list[Call]
) -> None:
    admission = Admission(most, adaptive=adaptive)
    admitted: dict[int, float] = {}

    async def play(number: int, call: Call) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(call.patience) as patience, admission.slot():
                patience.reschedule(None)
                admitted[number] = now()
                assert 1 <= admission.in_flight <= admission.limit <= most
                await asyncio.sleep(call.lasts - 0.25)
                if call.pushed_back:
                    admission.record_pushback()
                await asyncio.sleep(0.25)
                if not call.pushed_back:
                    admission.record_success()

    async with asyncio.TaskGroup() as group:
        for number, call in enumerate(calls):
            await asyncio.sleep(call.at - now())
            group.create_task(play(number, call))
    assert admission.in_flight == 0
    times = [admitted[number] for number in sorted(admitted)]
    assert times == sorted(times)
    assert all(number in admitted for number, call in enumerate(calls) if call.patience is None)
    if not adaptive:
        assert admission.limit == most


@dataclass
class Held:
    """Calls in flight until they are let go."""

    tasks: list[asyncio.Task[None]]
    let_go: asyncio.Event

    async def end(self) -> None:
        """Let them go and see them gone."""
        self.let_go.set()
        await asyncio.gather(*self.tasks)


async def hold(admission: Admission, count: int) -> Held:
    """Ask for so many slots at once, and keep them."""
    let_go = asyncio.Event()

    async def call() -> None:
        async with admission.slot():
            await let_go.wait()

    tasks = [asyncio.create_task(call()) for _ in range(count)]
    await asyncio.sleep(0)
    return Held(tasks, let_go)


@pytest.mark.parametrize("when", ["just before", "just after"])
@in_virtual_time
async def test_a_call_cancelled_while_it_is_admitted_passes_its_slot_on(when: str) -> None:
    admission, go = Admission(1, adaptive=False), asyncio.Event()

    async def first() -> None:
        async with admission.slot():
            await go.wait()
            if when == "just before":
                leaver.tasks[0].cancel()
        if when == "just after":
            leaver.tasks[0].cancel()  # it has the slot, and has not run yet

    holder = asyncio.create_task(first())
    await asyncio.sleep(0)
    leaver, after = await hold(admission, 1), await hold(admission, 1)
    go.set()
    await holder
    with pytest.raises(asyncio.CancelledError):
        await leaver.tasks[0]
    await after.end()
    assert admission.in_flight == 0


@in_virtual_time
async def test_a_burst_of_refusals_halves_the_limit_once() -> None:
    admission = Admission(64, adaptive=True)
    held = await hold(admission, 64)
    for _ in range(64):
        admission.record_pushback()
    assert admission.limit == 32
    await held.end()
    admission.record_pushback()
    assert admission.limit == 32, "the same second"
    await asyncio.sleep(1)
    held = await hold(admission, 32)
    admission.record_pushback()
    assert admission.limit == 16
    await held.end()


@in_virtual_time
async def test_calls_older_than_a_decrease_cause_no_further_one() -> None:
    admission = Admission(8, adaptive=True)
    held = await hold(admission, 8)
    admission.record_pushback()
    await asyncio.sleep(100)
    admission.record_pushback()
    assert admission.limit == 4
    await held.end()
    held = await hold(admission, 4)
    admission.record_pushback()
    assert admission.limit == 2
    await held.end()


@in_virtual_time
async def test_a_decrease_starts_from_the_peak_in_flight() -> None:
    admission = Admission(4096, adaptive=True)
    await (await hold(admission, 10)).end()
    admission.record_pushback()
    assert admission.limit == 5


@in_virtual_time
async def test_the_limit_never_falls_below_one() -> None:
    admission = Admission(2, adaptive=True)
    for _ in range(5):
        admission.record_pushback()
        await asyncio.sleep(2)
    assert admission.limit == 1


@in_virtual_time
async def test_half_the_limit_is_regained_in_about_eight_round_trips() -> None:
    admission = Admission(64, adaptive=True)
    await (await hold(admission, 64)).end()
    admission.record_pushback()
    limits = [admission.limit]
    for _ in range(9):
        for _ in range(admission.limit):
            admission.record_success()
        limits.append(admission.limit)
    assert (limits[0], limits[-1]) == (32, 64)
    steps = [after - before for before, after in itertools.pairwise(limits)]
    assert 0 < max(steps) <= 4


@in_virtual_time
async def test_an_increased_limit_admits_waiting_calls() -> None:
    admission = Admission(2, adaptive=True, gain=1.0)
    before = await hold(admission, 2)
    admission.record_pushback()
    await before.end()
    held = await hold(admission, 2)
    assert (admission.limit, admission.in_flight) == (1, 1)
    admission.record_success()
    assert (admission.limit, admission.in_flight) == (2, 2)
    await held.end()


@in_virtual_time
async def test_two_clients_of_a_service_end_with_equal_shares() -> None:
    """Chiu & Jain: whatever they start with."""
    capacity, serving = 60, 0
    one, two = Admission(64, adaptive=True), Admission(64, adaptive=True)
    await (await hold(two, 8)).end()
    two.record_pushback()
    assert (one.limit, two.limit) == (64, 4)

    async def worker(admission: Admission) -> None:
        nonlocal serving
        while now() < 400:
            async with admission.slot():
                serving += 1
                await asyncio.sleep(1.0)
                if serving > capacity:
                    admission.record_pushback()
                else:
                    admission.record_success()
                serving -= 1

    limits = list[tuple[int, int]]()
    async with asyncio.TaskGroup() as group:
        for who in (one, two):
            for _ in range(64):
                group.create_task(worker(who))
        while now() < 400:
            await asyncio.sleep(1)
            if now() > 200:
                limits.append((one.limit, two.limit))
    first, second = (sum(column) / len(limits) for column in zip(*limits, strict=True))
    assert 0.8 < first / second < 1.25


def test_a_limit_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="no call would be in flight"):
        Admission(0, adaptive=True)


# --- backoff ----------------------------------------------------------------------------------


@given(failures=st.integers(1, 1000))
def test_backoff_stays_below_a_cap_that_doubles(failures: int) -> None:
    cap = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (failures - 1))
    assert 0 <= backoff_s(failures) <= cap


def test_backoff_covers_its_whole_range() -> None:
    drawn = [backoff_s(3) for _ in range(2000)]
    assert min(drawn) < 0.1 * 4 * BACKOFF_S
    assert max(drawn) > 0.9 * 4 * BACKOFF_S
