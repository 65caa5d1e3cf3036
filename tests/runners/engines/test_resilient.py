"""Tries, limits, deadlines and pauses of engine calls, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.concurrency.limits import Admission, TokenBucket
from runners.engines.contract import Engine, EngineError, Generation, SamplingParams
from runners.engines.resilient import EngineCallCounters, PauseResult, ResilientEngine
from tests.fakes.timed_engine import Step, TimedEngine
from tests.fakes.virtual_time import in_virtual_time

DEADLINE_S = 60.0
BUSY = EngineError("busy", status=503, retryable=True, pushed_back=True)
BROKEN = EngineError("broken", status=500, retryable=True)
REFUSED = EngineError("refused", status=400)
DROPPED = EngineError("dropped", retryable=True, dropped=True)


def now() -> float:
    return asyncio.get_running_loop().time()


class Bench:
    """A resilient engine over a scripted one."""

    def __init__(
        self,
        *script: Step,
        attempts: int = 3,
        deadline_s: float = DEADLINE_S,
        rate: float | None = None,
        most: int = 100,
    ) -> None:
        self.inner = TimedEngine()
        self.inner.script.extend(script)
        self.admission = Admission(most, adaptive=True)
        self.engine = ResilientEngine(
            self.inner,
            attempts=attempts,
            deadline_s=deadline_s,
            bucket=TokenBucket(rate),
            admission=self.admission,
        )
        self.counters = EngineCallCounters()

    async def ask(self, rid: str = "r") -> Generation:
        return await self.engine.generate(
            [1, 2], SamplingParams(8), rid=rid, counters=self.counters
        )

    def soon(self, rid: str = "r") -> asyncio.Task[Generation]:
        return asyncio.create_task(self.ask(rid))

    @property
    def rids(self) -> list[str]:
        return [seen.rid for seen in self.inner.tries]


def test_it_is_an_engine_itself() -> None:
    engine: Engine = Bench().engine
    assert engine


# --- tries ------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_failure_that_may_pass_is_tried_again_under_another_id() -> None:
    bench = Bench(Step(error=BROKEN), Step(error=BUSY))
    assert (await bench.ask()).finish_reason == "stop"
    assert bench.rids == ["r-001", "r-002", "r-003"]
    assert bench.counters == EngineCallCounters(engine_retries=2, pushed_back=1)


@in_virtual_time
async def test_no_try_has_an_id_that_begins_with_another_ones() -> None:
    bench = Bench(*[Step(error=BROKEN)] * 15, attempts=16, deadline_s=1e9)
    await bench.ask()
    assert not [one for one in bench.rids for two in bench.rids if one != two and one in two]


@in_virtual_time
async def test_the_last_failure_is_the_callers() -> None:
    bench = Bench(Step(error=BUSY), Step(error=BROKEN), Step(error=BUSY), attempts=2)
    with pytest.raises(EngineError, match="broken"):
        await bench.ask()
    assert len(bench.rids) == 2
    assert bench.counters == EngineCallCounters(engine_retries=1, pushed_back=1)


@in_virtual_time
async def test_a_refusal_is_not_tried_again() -> None:
    bench = Bench(Step(error=REFUSED))
    with pytest.raises(EngineError, match="refused"):
        await bench.ask()
    assert len(bench.rids) == 1


@in_virtual_time
async def test_a_generation_that_the_engine_aborted_is_none() -> None:
    bench = Bench(Step(finish="abort"), Step(finish="length"))
    assert (await bench.ask()).finish_reason == "length"
    bench.inner.script.extend([Step(finish="abort")] * 3)
    with pytest.raises(EngineError, match="aborted the generation") as caught:
        await bench.ask()
    assert caught.value.retryable


@in_virtual_time
async def test_a_dropped_connection_is_tried_again_once_and_at_once() -> None:
    bench = Bench(Step(error=DROPPED), attempts=1)
    await bench.ask()
    assert [seen.began for seen in bench.inner.tries] == [0.0, 0.0]
    bench.inner.script.extend([Step(error=DROPPED)] * 2)
    with pytest.raises(EngineError, match="dropped"):
        await bench.ask()
    assert len(bench.rids) == 4


@in_virtual_time
async def test_it_comes_back_no_sooner_than_the_engine_asked() -> None:
    bench = Bench(Step(error=EngineError("later", status=429, retryable=True, retry_after_s=20)))
    await bench.ask()
    assert 20 <= bench.inner.tries[1].began <= 20.25


@in_virtual_time
async def test_an_engine_that_asks_for_more_than_is_left_is_not_waited_for() -> None:
    bench = Bench(Step(error=EngineError("later", status=429, retryable=True, retry_after_s=61)))
    with pytest.raises(EngineError, match="later"):
        await bench.ask()
    assert now() == 0


# --- deadlines and limits ---------------------------------------------------------------------


@in_virtual_time
async def test_a_call_without_an_answer_is_given_up_at_its_deadline() -> None:
    bench = Bench(Step(seconds=1e6))
    with pytest.raises(EngineError, match="did not answer within 60 s") as caught:
        await bench.ask()
    assert (now(), caught.value.retryable) == (60.0, True)
    assert bench.inner.tries[0].cancelled


STEPS = st.builds(
    Step,
    seconds=st.floats(0, 40),
    error=st.sampled_from([None, BUSY, BROKEN, REFUSED, DROPPED]),
    finish=st.sampled_from(["stop", "abort"]),
)


@given(script=st.lists(STEPS, max_size=12), attempts=st.integers(1, 8))
@in_virtual_time
async def test_no_call_lasts_longer_than_its_deadline(script: list[Step], attempts: int) -> None:
    bench = Bench(*script, attempts=attempts)
    try:
        assert (await bench.ask()).finish_reason == "stop"
    except EngineError:
        assert len(bench.rids) <= attempts + 1
    assert now() <= DEADLINE_S + 1e-6
    assert bench.admission.in_flight == bench.inner.running == 0


@in_virtual_time
async def test_waiting_for_our_own_limits_costs_no_deadline() -> None:
    bench = Bench(*[Step(seconds=50)] * 3, most=1)
    await asyncio.gather(*(bench.ask() for _ in range(3)))
    assert now() == 150.0
    bench = Bench(*[Step(seconds=50)] * 3, rate=0.01)
    await asyncio.gather(*(bench.ask() for _ in range(3)))
    assert [seen.began - 150 for seen in bench.inner.tries] == [0.0, 100.0, 200.0]


@in_virtual_time
async def test_a_second_try_waits_for_the_rate_too() -> None:
    bench = Bench(Step(error=DROPPED), rate=0.1)
    await bench.ask()
    assert [seen.began for seen in bench.inner.tries] == [0.0, 10.0]


@in_virtual_time
async def test_who_waits_before_another_try_lets_others_in() -> None:
    later = EngineError("later", status=429, retryable=True, retry_after_s=30)
    bench = Bench(Step(error=later), Step(seconds=5), most=1)
    one, two = bench.soon("one"), bench.soon("two")
    await two
    assert now() == 5.0
    await one
    assert [rid[:3] for rid in bench.rids] == ["one", "two", "one"]


@in_virtual_time
async def test_an_engine_that_pushes_back_is_asked_less_at_once() -> None:
    bench = Bench(*[Step(seconds=1, error=BUSY)] * 100, attempts=1)
    calls = [bench.soon() for _ in range(100)]
    await asyncio.gather(*calls, return_exceptions=True)
    assert bench.admission.limit == 50
    assert bench.counters.pushed_back == 100


@pytest.mark.parametrize(("queue_s", "pushed_back"), [(14.0, 0), (16.0, 1)])
@in_virtual_time
async def test_a_long_queue_at_the_engine_is_a_push_back(queue_s: float, pushed_back: int) -> None:
    bench = Bench(Step(seconds=20, queue_s=queue_s))
    await bench.ask()
    assert bench.counters.pushed_back == pushed_back
    assert bench.admission.limit == (1 if pushed_back else 100)


@in_virtual_time
async def test_a_cancelled_call_is_cancelled_at_the_engine_and_not_tried_again() -> None:
    bench = Bench(Step(seconds=10))
    call = bench.soon()
    await asyncio.sleep(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [seen.cancelled for seen in bench.inner.tries] == [True]
    assert bench.admission.in_flight == 0


# --- pauses -----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_pause_lets_what_is_in_flight_finish_and_holds_what_comes() -> None:
    bench = Bench(Step(seconds=10))
    running = bench.soon("old")
    await asyncio.sleep(1)
    pausing = asyncio.create_task(bench.engine.pause(30))
    await asyncio.sleep(1)
    later = [bench.soon(f"new{number}") for number in range(3)]
    assert await pausing == PauseResult(finished=1, aborted=0)
    assert now() == 10.0
    assert running.done()
    await asyncio.sleep(1000)
    assert bench.rids == ["old-001"]
    bench.engine.resume()
    await asyncio.gather(*later)
    assert bench.rids[1:] == ["new0-001", "new1-001", "new2-001"]


@in_virtual_time
async def test_what_is_not_finished_in_time_is_sampled_again_after_the_pause() -> None:
    bench = Bench(Step(seconds=50), Step(seconds=55))
    call = bench.soon()
    await asyncio.sleep(20)
    assert await bench.engine.pause(10) == PauseResult(finished=0, aborted=1)
    assert (now(), bench.inner.running) == (30.0, 0)
    assert bench.inner.tries[0].cancelled
    await asyncio.sleep(100)
    bench.engine.resume()
    assert (await call).finish_reason == "stop", "with a whole deadline: it was cut by us"
    assert bench.counters == EngineCallCounters(drained=1)
    assert bench.rids == ["r-001", "r-002"]


@in_virtual_time
async def test_an_idle_engine_is_paused_at_once() -> None:
    assert await Bench().engine.pause(30) == PauseResult(finished=0, aborted=0)
    assert now() == 0


@in_virtual_time
async def test_a_call_before_its_next_try_waits_for_the_end_of_a_pause() -> None:
    bench = Bench(Step(error=EngineError("later", status=429, retryable=True, retry_after_s=5)))
    call = bench.soon()
    await asyncio.sleep(1)
    await bench.engine.pause(0)
    await asyncio.sleep(100)
    assert len(bench.rids) == 1
    bench.engine.resume()
    await call


@in_virtual_time
async def test_a_pause_right_after_another_lets_nobody_slip_through() -> None:
    bench = Bench()
    await bench.engine.pause(0)
    call = bench.soon()
    await asyncio.sleep(1)
    bench.engine.resume()
    await bench.engine.pause(0)
    await asyncio.sleep(100)
    assert bench.rids == []
    bench.engine.resume()
    await call


@in_virtual_time
async def test_a_deadline_that_ends_in_the_same_moment_as_the_pauses_is_a_failure() -> None:
    bench = Bench(Step(seconds=1e6))
    call = bench.soon()
    await asyncio.sleep(1)
    moment = 5e-10  # less than the loop tells apart
    assert await bench.engine.pause(DEADLINE_S - 1 - moment) == PauseResult(finished=1, aborted=0)
    with pytest.raises(EngineError, match="did not answer"):
        await call


@in_virtual_time
async def test_time_at_the_engine_that_a_pause_made_vain_costs_no_deadline() -> None:
    bench = Bench(Step(seconds=20, error=DROPPED), Step(seconds=30), Step(seconds=35))
    call = bench.soon()
    await asyncio.sleep(45)
    assert await bench.engine.pause(0) == PauseResult(finished=0, aborted=1)
    bench.engine.resume()
    await call
    assert now() == 80.0


@in_virtual_time
async def test_a_caller_that_leaves_during_a_pause_leaves_nothing() -> None:
    bench = Bench(Step(seconds=50), most=2)
    calls = [bench.soon() for _ in range(4)]  # aborted, held, and waiting for a slot
    await asyncio.sleep(1)
    await bench.engine.pause(0)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert bench.admission.in_flight == bench.inner.running == 0
    bench.engine.resume()
    await bench.ask()


@in_virtual_time
async def test_a_pause_that_is_given_up_stays_until_it_is_resumed() -> None:
    bench = Bench(Step(seconds=10))
    running = bench.soon()
    await asyncio.sleep(1)
    pausing = asyncio.create_task(bench.engine.pause(30))
    await asyncio.sleep(1)
    pausing.cancel()
    later = bench.soon()
    await running
    await asyncio.sleep(100)
    assert not later.done()
    bench.engine.resume()
    await later


@dataclass(frozen=True)
class Change:
    """A change of weights."""

    after: float
    deadline_s: float
    lasts: float


@given(
    arrivals=st.lists(st.tuples(st.floats(0, 5), STEPS), max_size=20),
    changes=st.lists(
        st.builds(Change, st.floats(0, 10), st.floats(0, 10), st.floats(0, 5)), max_size=4
    ),
)
@in_virtual_time
async def test_no_generation_sees_two_weight_versions(
    arrivals: list[tuple[float, Step]], changes: list[Change]
) -> None:
    """The timed engine asserts it, whatever comes when."""
    bench = Bench(*(replace(step, error=None) for _, step in arrivals), most=4, rate=2.0)
    calls: list[asyncio.Task[Generation]] = []

    async def come() -> None:
        for after, _ in arrivals:
            await asyncio.sleep(after)
            calls.append(bench.soon())

    coming = asyncio.create_task(come())
    for version, change in enumerate(changes, start=1):
        await asyncio.sleep(change.after)
        await bench.engine.pause(change.deadline_s)
        await bench.engine.update_weights(Path(), version)
        await asyncio.sleep(change.lasts)
        assert bench.inner.running == 0
        bench.engine.resume()
    await coming
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, Generation | EngineError) for end in ended), ended
