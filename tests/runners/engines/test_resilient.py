"""Attempts, limits, deadlines and pauses of engine calls, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.testing.completions import Completion, routed
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.engines.client import HttpEngine
from runners.engines.contract import Engine, EngineError, Generation, SamplingParams
from runners.engines.resilient import (
    INTERRUPT_S,
    EngineCallCounters,
    PauseResult,
    ResilientEngine,
)
from runners.records.routing import RoutingShape
from runners.records.tokenizer import tiny_tokenizer
from runners.system.concurrency.limits import Admission, TokenBucket
from tests.fakes.virtual_time import in_virtual_time

DEADLINE_S = 60.0
SHAPE = RoutingShape(layers=2, top_k=1, experts=4, routed=(0, 1))
TOKENIZER = tiny_tokenizer()
DONE = Completion("ok<|im_end|>")
BUSY = Completion(status=503, message="busy")
BROKEN = Completion(status=500, message="broken")
REFUSED = Completion(status=400, message="refused")
DROPPED = Completion(drops=True)


def wait_for(seconds: int) -> Completion:
    """Return a refusal that asks to wait."""
    return Completion(status=429, message="later", headers={"Retry-After": str(seconds)})


def now() -> float:
    return asyncio.get_running_loop().time()


class Bench:
    """A resilient engine over the client of a scripted one, without sockets."""

    def __init__(
        self,
        *script: Completion,
        attempts: int = 3,
        deadline_s: float = DEADLINE_S,
        rate: float | None = None,
        most: int = 100,
        continue_aborted: bool = False,
        abort: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.inner = ScriptedEngine(TOKENIZER)
        self.inner.always = DONE
        self.inner.say(*script)
        self.client = HttpEngine("scripted", deadline_s=1e12, connection=self.inner)
        self.admission = Admission(most, adaptive=True)
        self.engine = ResilientEngine(
            self.client,
            attempts=attempts,
            deadline_s=deadline_s,
            bucket=TokenBucket(rate),
            admission=self.admission,
            abort=abort or self.client.abort,
            continue_aborted=continue_aborted,
        )
        self.counters = EngineCallCounters()
        self.calls = 0

    async def generate(
        self, rid: str | None = None, params: SamplingParams | None = None
    ) -> Generation:
        """Make a call; the first one without an id is ``r``."""
        if rid is None:
            rid = f"r{self.calls or ''}"
            self.calls += 1
        return await self.engine.generate(
            [1, 2], params or SamplingParams(8), rid=rid, counters=self.counters
        )

    def start(self, rid: str | None = None) -> asyncio.Task[Generation]:
        """Make a call in the background."""
        return asyncio.create_task(self.generate(rid))

    @property
    def rids(self) -> list[str]:
        return [request["rid"] for request in self.inner.seen.requests]


def test_a_resilient_engine_is_an_engine() -> None:
    engine: Engine = Bench().engine
    assert engine


# --- attempts ---------------------------------------------------------------------------------


@in_virtual_time
async def test_a_retryable_failure_is_retried_with_another_id() -> None:
    bench = Bench(BROKEN, BUSY)
    assert (await bench.generate()).finish_reason == "stop"
    assert bench.rids == ["r-001", "r-002", "r-003"]
    assert bench.counters == EngineCallCounters(engine_retries=2, pushed_back=1)


@in_virtual_time
async def test_no_request_id_is_a_prefix_of_another() -> None:
    bench = Bench(*[BROKEN] * 15, attempts=16, deadline_s=1e9)
    await bench.generate()
    assert not [one for one in bench.rids for two in bench.rids if one != two and one in two]


@in_virtual_time
async def test_the_last_failure_is_raised() -> None:
    bench = Bench(BUSY, BROKEN, BUSY, attempts=2)
    with pytest.raises(EngineError, match="broken"):
        await bench.generate()
    assert len(bench.rids) == 2
    assert bench.counters == EngineCallCounters(engine_retries=1, pushed_back=1)


@in_virtual_time
async def test_a_refusal_is_not_retried() -> None:
    bench = Bench(REFUSED)
    with pytest.raises(EngineError, match="refused"):
        await bench.generate()
    assert len(bench.rids) == 1


@in_virtual_time
async def test_a_generation_that_the_engine_aborted_is_retried() -> None:
    bench = Bench(Completion(finish="abort"), Completion(finish="length"))
    assert (await bench.generate()).finish_reason == "length"
    bench.inner.say(*[Completion(finish="abort")] * 3)
    with pytest.raises(EngineError, match="aborted the generation") as caught:
        await bench.generate()
    assert caught.value.retryable


@in_virtual_time
async def test_tokens_of_a_generation_that_the_engine_aborted_are_not_continued_by_default() -> (
    None
):
    """The engine aborted for a reason that nobody knows, so its tokens are not to be trained on."""
    bench = Bench(Completion(ids=(5, 6, 7), finish="abort"), Completion(ids=(9,)))
    assert (await bench.generate()).output_ids.tolist() == [9]
    asked = [(r["input_ids"], r["sampling_params"]["max_new_tokens"])
             for r in bench.inner.seen.requests]  # fmt: skip
    assert asked == [([1, 2], 8), ([1, 2], 8)]
    assert bench.counters == EngineCallCounters(engine_retries=1)


@in_virtual_time
async def test_a_generation_that_another_program_s_weights_cut_off_goes_on_from_its_tokens() -> (
    None
):
    bench = Bench(
        Completion(ids=(5, 6, 7), finish="abort", weight_version="3"),
        Completion(ids=(8,), finish="abort", weight_version="4"),
        Completion(ids=(9, 10), weight_version="4"),
        continue_aborted=True,
    )
    bench.inner.shape = SHAPE
    params = SamplingParams(8, routing_start=0)
    whole = await bench.engine.generate([1, 2], params, rid="r", counters=bench.counters)
    asked = [
        (r["input_ids"], r["sampling_params"]["max_new_tokens"], r["routed_experts_start_len"])
        for r in bench.inner.seen.requests
    ]
    assert asked == [([1, 2], 8, 0), ([1, 2, 5, 6, 7], 5, 4), ([1, 2, 5, 6, 7, 8], 4, 5)]
    assert whole.output_ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert (whole.finish_reason, whole.weight_version, whole.prompt_tokens) == ("stop", 4, 2)
    assert whole.weight_spans == ((3, 3), (4, 3))
    assert whole.routing is not None
    assert whole.routing.size == (2 + 6 - 1) * SHAPE.layers * SHAPE.top_k


@in_virtual_time
async def test_a_dropped_connection_is_retried_once_and_at_once() -> None:
    bench = Bench(DROPPED, attempts=1)
    await bench.generate()
    assert bench.inner.seen.began == [0.0, 0.0]
    bench.inner.say(*[DROPPED] * 2)
    with pytest.raises(EngineError, match="unreachable"):
        await bench.generate()
    assert len(bench.rids) == 4


@in_virtual_time
async def test_a_retry_waits_as_long_as_the_engine_asked() -> None:
    bench = Bench(wait_for(20))
    await bench.generate()
    assert 20 <= bench.inner.seen.began[1] <= 20.25


@in_virtual_time
async def test_a_wait_beyond_the_deadline_is_an_error_at_once() -> None:
    bench = Bench(wait_for(61))
    with pytest.raises(EngineError, match="later"):
        await bench.generate()
    assert now() == 0


# --- deadlines and limits ---------------------------------------------------------------------


@in_virtual_time
async def test_a_call_without_an_answer_ends_at_its_deadline() -> None:
    bench = Bench(Completion(delay_s=1e6))
    with pytest.raises(EngineError, match="did not answer within 60 s") as caught:
        await bench.generate()
    assert (now(), caught.value.retryable) == (60.0, True)
    assert "r-001" in bench.inner.seen.aborted


COMPLETIONS = st.builds(
    replace,
    st.sampled_from([DONE, Completion(finish="abort"), BUSY, BROKEN, REFUSED, DROPPED]),
    delay_s=st.floats(0, 40),
)


@given(script=st.lists(COMPLETIONS, max_size=12), attempts=st.integers(1, 8))
@in_virtual_time
async def test_no_call_lasts_longer_than_its_deadline(
    script: list[Completion], attempts: int
) -> None:
    bench = Bench(*script, attempts=attempts)
    try:
        assert (await bench.generate()).finish_reason == "stop"
    except EngineError:
        assert len(bench.rids) <= attempts + 1
    assert now() <= DEADLINE_S + 1e-6
    assert bench.admission.in_flight == bench.inner.running == 0


@in_virtual_time
async def test_waiting_for_our_own_limits_costs_no_deadline() -> None:
    bench = Bench(*[Completion(delay_s=50)] * 3, most=1)
    await asyncio.gather(*(bench.generate() for _ in range(3)))
    assert now() == 150.0
    bench = Bench(*[Completion(delay_s=50)] * 3, rate=0.01)
    await asyncio.gather(*(bench.generate() for _ in range(3)))
    assert [began - 150 for began in bench.inner.seen.began] == [0.0, 100.0, 200.0]


@in_virtual_time
async def test_a_retry_waits_for_the_rate_limit() -> None:
    bench = Bench(DROPPED, rate=0.1)
    await bench.generate()
    assert bench.inner.seen.began == [0.0, 10.0]


@in_virtual_time
async def test_a_call_that_waits_for_its_retry_gives_up_its_slot() -> None:
    bench = Bench(wait_for(30), Completion(delay_s=5), most=1)
    one, two = bench.start("one"), bench.start("two")
    await two
    assert now() == 5.0
    await one
    assert [rid[:3] for rid in bench.rids] == ["one", "two", "one"]


@in_virtual_time
async def test_pushback_decreases_the_concurrency() -> None:
    bench = Bench(*[Completion(status=503, delay_s=1)] * 100, attempts=1)
    calls = [bench.start() for _ in range(100)]
    await asyncio.gather(*calls, return_exceptions=True)
    assert bench.admission.limit == 50
    assert bench.counters.pushed_back == 100


@pytest.mark.parametrize(("queue_s", "pushed_back"), [(14.0, 0), (16.0, 1)])
@in_virtual_time
async def test_a_long_queue_at_the_engine_counts_as_pushback(
    queue_s: float, pushed_back: int
) -> None:
    bench = Bench(Completion(delay_s=20, queue_s=queue_s))
    await bench.generate()
    assert bench.counters.pushed_back == pushed_back
    assert bench.admission.limit == (1 if pushed_back else 100)


@in_virtual_time
async def test_a_cancelled_call_is_aborted_and_not_retried() -> None:
    bench = Bench(Completion(delay_s=10))
    call = bench.start()
    await asyncio.sleep(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert bench.rids == ["r-001"]
    assert "r-001" in bench.inner.seen.aborted
    assert bench.admission.in_flight == 0


# --- pauses -----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_pause_waits_for_running_generations_and_holds_new_ones() -> None:
    bench = Bench(Completion(delay_s=10))
    running = bench.start("old")
    await asyncio.sleep(1)
    pausing = asyncio.create_task(bench.engine.pause(30))
    await asyncio.sleep(1)
    later = [bench.start(f"new{number}") for number in range(3)]
    assert await pausing == PauseResult(finished=1, aborted=0)
    assert now() == 10.0
    assert running.done()
    await asyncio.sleep(1000)
    assert bench.rids == ["old-001"]
    bench.engine.resume()
    await asyncio.gather(*later)
    assert bench.rids[1:] == ["new0-001", "new1-001", "new2-001"]


@in_virtual_time
async def test_a_generation_that_a_pause_aborted_is_sampled_again() -> None:
    bench = Bench(Completion(delay_s=50), Completion(delay_s=55))
    call = bench.start()
    await asyncio.sleep(20)
    assert await bench.engine.pause(10) == PauseResult(finished=0, aborted=1)
    assert (now(), bench.inner.running) == (30.0, 0)
    assert "r-001" in bench.inner.seen.aborted
    await asyncio.sleep(100)
    bench.engine.resume()
    assert (await call).finish_reason == "stop", "with a whole deadline: it was cut by us"
    assert bench.counters == EngineCallCounters(drained=1)
    assert bench.rids == ["r-001", "r-002"]


@in_virtual_time
async def test_an_idle_engine_pauses_at_once() -> None:
    assert await Bench().engine.pause(30) == PauseResult(finished=0, aborted=0)
    assert now() == 0


@in_virtual_time
async def test_a_retry_waits_for_the_end_of_a_pause() -> None:
    bench = Bench(wait_for(5))
    call = bench.start()
    await asyncio.sleep(1)
    await bench.engine.pause(0)
    await asyncio.sleep(100)
    assert len(bench.rids) == 1
    bench.engine.resume()
    await call


@in_virtual_time
async def test_no_call_starts_between_two_pauses() -> None:
    bench = Bench()
    await bench.engine.pause(0)
    call = bench.start()
    await asyncio.sleep(1)
    bench.engine.resume()
    await bench.engine.pause(0)
    await asyncio.sleep(100)
    assert bench.rids == []
    bench.engine.resume()
    await call


@in_virtual_time
async def test_a_deadline_that_ends_with_the_pause_s_is_a_failure() -> None:
    bench = Bench(Completion(delay_s=1e6))
    call = bench.start()
    await asyncio.sleep(1)
    moment = 5e-10  # less than the loop tells apart
    assert await bench.engine.pause(DEADLINE_S - 1 - moment) == PauseResult(finished=1, aborted=0)
    with pytest.raises(EngineError, match="did not answer"):
        await call


@in_virtual_time
async def test_time_that_a_pause_wasted_costs_no_deadline() -> None:
    bench = Bench(
        Completion(drops=True, delay_s=20), Completion(delay_s=30), Completion(delay_s=35)
    )
    call = bench.start()
    await asyncio.sleep(45)
    assert await bench.engine.pause(0) == PauseResult(finished=0, aborted=1)
    bench.engine.resume()
    await call
    assert now() == 80.0


@in_virtual_time
async def test_calls_cancelled_during_a_pause_leave_nothing() -> None:
    bench = Bench(Completion(delay_s=50), most=2)
    calls = [bench.start() for _ in range(4)]  # aborted, held, and waiting for a slot
    await asyncio.sleep(1)
    await bench.engine.pause(0)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert bench.admission.in_flight == bench.inner.running == 0
    bench.engine.resume()
    await bench.generate()


@in_virtual_time
async def test_a_cancelled_pause_lasts_until_resume() -> None:
    bench = Bench(Completion(delay_s=10))
    running = bench.start()
    await asyncio.sleep(1)
    pausing = asyncio.create_task(bench.engine.pause(30))
    await asyncio.sleep(1)
    pausing.cancel()
    later = bench.start()
    await running
    await asyncio.sleep(100)
    assert not later.done()
    bench.engine.resume()
    await later


def tokens(*ids: int, delay_s: float = 8.0) -> Completion:
    """Return an answer of these ids, which come one after the other until ``delay_s``."""
    return Completion("", ids=ids, delay_s=delay_s)


@in_virtual_time
async def test_a_generation_that_a_pause_keeps_is_continued_with_the_weights_after_it() -> None:
    bench = Bench(tokens(5, 6, 7, 8), tokens(9, 10, delay_s=4), tokens(11))
    bench.inner.shape = SHAPE
    call = asyncio.create_task(bench.generate(params=SamplingParams(8, routing_start=1)))
    for version in (2, 3):
        await asyncio.sleep(2.5 if version == 3 else 4.5)
        assert await bench.engine.pause(0, keep=True) == PauseResult(0, 0, kept=1)
        await bench.client.update_weights(Path(), version)
        bench.engine.resume()
    found = await call
    assert found.output_ids.tolist() == [5, 6, 9, 11]
    assert (found.weight_spans, found.weight_version) == (((1, 2), (2, 1), (3, 1)), 3)
    assert (found.finish_reason, found.prompt_tokens) == ("stop", 2)
    prompts = [(body["input_ids"], body["sampling_params"]["max_new_tokens"])
               for body in bench.inner.seen.requests]  # fmt: skip
    assert prompts == [([1, 2], 8), ([1, 2, 5, 6], 6), ([1, 2, 5, 6, 9], 5)]
    parts = [row for _, row in bench.inner.seen.answered]
    assert found.logprobs.tolist() == [p for part in parts for p in part]
    # a row per token but the last, from the first that was wanted, each by the weights of its part
    path = [1, 2, 5, 6, 9, 11]
    rows = [(1, 1, 3), (2, 3, 4), (3, 4, 5)]
    wanted = [routed(SHAPE, path, version)[begin:end] for version, begin, end in rows]
    assert found.routing is not None
    assert np.array_equal(found.routing, np.concatenate(wanted).ravel())
    assert bench.counters == EngineCallCounters()


@pytest.mark.parametrize("why", ["stop string", "unknown weights", "no routing"])
@in_virtual_time
async def test_a_generation_that_cannot_be_continued_is_sampled_again(why: str) -> None:
    bench = Bench(tokens(5, 6, 7, 8), tokens(9))
    params = SamplingParams(8, stop=("x",) if why == "stop string" else ())
    if why == "unknown weights":
        bench.inner.weight_version = "unnamed"
    if why == "no routing":
        params = replace(params, routing_start=0)
    call = asyncio.create_task(bench.generate(params=params))
    await asyncio.sleep(5)
    assert await bench.engine.pause(0, keep=True) == PauseResult(finished=0, aborted=1)
    bench.engine.resume()
    if why == "no routing":
        bench.inner.shape = SHAPE
    assert (await call).output_ids.tolist() == [9]
    assert bench.counters.drained == 1


@pytest.mark.parametrize(
    ("params", "reason"),
    [(SamplingParams(2), "length"), (SamplingParams(8, stop_token_ids=(6,)), "stop")],
)
@in_virtual_time
async def test_a_generation_that_is_aborted_at_its_last_token_is_whole(
    params: SamplingParams, reason: str
) -> None:
    bench = Bench(Completion("", ids=(5, 6, 7), delay_s=9))
    call = asyncio.create_task(bench.generate(params=params))
    await asyncio.sleep(7)
    assert await bench.engine.pause(0, keep=True) == PauseResult(finished=1, aborted=0)
    found = await call
    assert (found.output_ids.tolist(), found.finish_reason) == ([5, 6], reason)
    assert len(bench.rids) == 1


@in_virtual_time
async def test_an_engine_that_ignores_aborts_gives_its_requests_up_after_a_while() -> None:
    bench = Bench(tokens(5, 6, delay_s=40), tokens(9))
    bench.inner.deaf = True
    call = bench.start()
    await asyncio.sleep(1)
    assert await bench.engine.pause(0, keep=True) == PauseResult(finished=0, aborted=1)
    assert now() == 1 + INTERRUPT_S
    bench.engine.resume()
    assert (await call).output_ids.tolist() == [9]


@in_virtual_time
async def test_a_generation_whose_client_leaves_while_it_is_kept_leaves_nothing() -> None:
    bench = Bench(tokens(5, 6))
    call = bench.start()
    await asyncio.sleep(5)
    await bench.engine.pause(0, keep=True)
    call.cancel()
    await asyncio.wait([call])
    bench.engine.resume()
    assert bench.admission.in_flight == bench.inner.running == 0


@in_virtual_time
async def test_an_engine_that_hears_no_abort_holds_a_pause_for_a_bounded_time() -> None:
    async def hang(rid: str) -> None:
        await asyncio.sleep(3600)

    bench = Bench(tokens(5, 6, delay_s=50.0), abort=hang)
    call = bench.start()
    await asyncio.sleep(1)
    began = now()
    assert await bench.engine.pause(0, keep=True) == PauseResult(finished=0, aborted=1)
    assert now() - began == INTERRUPT_S
    call.cancel()
    await asyncio.wait([call])


@dataclass(frozen=True)
class Change:
    """A change of weights."""

    after: float
    deadline_s: float
    lasts: float


@given(
    arrivals=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 40)), max_size=20),
    changes=st.lists(
        st.builds(Change, st.floats(0, 10), st.floats(0, 10), st.floats(0, 5)), max_size=4
    ),
)
@in_virtual_time
async def test_no_generation_sees_two_weight_versions(
    arrivals: list[tuple[float, float]], changes: list[Change]
) -> None:
    bench = Bench(*(replace(DONE, delay_s=s) for _, s in arrivals), most=4, rate=2.0)
    calls: list[asyncio.Task[Generation]] = []

    async def arrive() -> None:
        for after, _ in arrivals:
            await asyncio.sleep(after)
            calls.append(bench.start())

    arriving = asyncio.create_task(arrive())
    for version, change in enumerate(changes, start=1):
        await asyncio.sleep(change.after)
        await bench.engine.pause(change.deadline_s)
        await bench.client.update_weights(Path(), version)
        await asyncio.sleep(change.lasts)
        assert bench.inner.running == 0
        bench.engine.resume()
    await arriving
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, Generation | EngineError) for end in ended), ended
    assert bench.inner.seen.mixed == []
