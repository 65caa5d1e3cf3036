"""Nothing of a turn is answered before it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.testing.completions import END, Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.engines.client import HttpEngine
from runners.engines.resilient import ResilientEngine
from runners.gateway.conversation import TurnRequest
from runners.gateway.dialects import anthropic, anthropic_reply
from runners.gateway.sessions.admin_bodies import SessionRequest
from runners.gateway.sessions.registry import SessionRegistry
from runners.gateway.sessions.session import Session, SessionServices
from runners.gateway.sessions.turn_log import AsyncTurnLog
from runners.gateway.settings import SessionSampling
from runners.gateway.texts.text_work import TextWork
from runners.gateway.texts.texts import Texts
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.records.tokenizer import load_renderer, load_tokenizer
from runners.system.concurrency.limits import Admission, TokenBucket
from tests.fakes.records import a_turn
from tests.fakes.running_gateway import make_limits
from tests.fakes.turn_log import HeldTurnLog


@dataclass
class Bench:
    """A session over a log that the test holds."""

    session: Session
    log: HeldTurnLog
    services: SessionServices


@pytest.fixture
async def bench(engine: ScriptedEngine, tokenizer_dir: Path) -> AsyncIterator[Bench]:
    tokenizer = load_tokenizer(tokenizer_dir)
    log, journal = HeldTurnLog(), AsyncTurnLog()
    client = ResilientEngine(
        HttpEngine(engine.url),
        attempts=1,
        deadline_s=20,
        bucket=TokenBucket(None),
        admission=Admission(8, adaptive=False),
    )
    await journal.open(lambda: log)
    renderer, limits = load_renderer(tokenizer, "qwen3"), make_limits()
    texts = Texts(TextWork(tokenizer, renderer, "qwen3"), limits)
    services = SessionServices(client, texts, journal, limits)
    sampling = SessionSampling(temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=100)
    yield Bench(
        Session("s", services, sampling, max_context_tokens=10_000, max_turns=100, seed=None),
        log,
        services,
    )
    log.open.set()
    await journal.close()
    await client.close()


def request(text: str = "hi") -> TurnRequest:
    body = b'{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "%b"}]}'
    return anthropic.TURN.parse_request(body % text.encode(), {}).request


async def wait_until_storing(bench: Bench) -> None:
    assert await asyncio.to_thread(bench.log.waiting.wait, 20)


async def test_an_answer_waits_for_its_turn_to_be_durable(
    bench: Bench, engine: ScriptedEngine
) -> None:
    engine.say(f"hello{END}")
    turn = bench.session.start_turn(request(), anthropic_reply)
    with turn.waiting() as outcome:
        await wait_until_storing(bench)
        await asyncio.wait({outcome}, timeout=0.05)
        assert not outcome.done()
        bench.log.open.set()
        assert (await outcome)["content"][0]["text"] == "hello"
    assert len(bench.log.stored) == 1


async def test_a_turn_that_is_being_stored_survives_its_client(
    bench: Bench, engine: ScriptedEngine
) -> None:
    engine.say(f"hello{END}")
    with bench.session.start_turn(request(), anthropic_reply).waiting():
        await wait_until_storing(bench)
    bench.log.open.set()
    with bench.session.start_turn(request(), anthropic_reply).waiting() as outcome:
        assert (await outcome)["content"][0]["text"] == "hello"
    assert len(engine.seen.requests) == 1


async def test_finishing_waits_for_a_turn_that_is_being_stored(
    bench: Bench, engine: ScriptedEngine
) -> None:
    engine.say(f"hello{END}")
    turn = bench.session.start_turn(request(), anthropic_reply)
    await wait_until_storing(bench)
    finishing = asyncio.create_task(bench.session.finish())
    await asyncio.wait({finishing}, timeout=0.05)
    assert not finishing.done()
    bench.log.open.set()
    await finishing
    assert turn.outcome.result()["content"][0]["text"] == "hello"
    assert (bench.session.counters.turns, bench.session.counters.aborted) == (1, 0)


async def test_a_turn_that_cannot_be_stored_is_not_answered(
    bench: Bench, engine: ScriptedEngine
) -> None:
    engine.say(f"lost{END}", f"kept{END}")
    bench.log.full = True
    bench.log.open.set()
    with (
        bench.session.start_turn(request(), anthropic_reply).waiting() as outcome,
        pytest.raises(StoreError, match="full"),
    ):
        await outcome
    bench.log.full = False
    with bench.session.start_turn(request(), anthropic_reply).waiting() as outcome:
        assert (await outcome)["content"][0]["text"] == "kept"
    (turn,) = bench.log.stored
    assert (turn.index, turn.segment, turn.prompt_kept, turn.break_reason) == (0, 0, 0, None)


async def test_a_retry_right_after_a_disconnect_is_a_turn_of_its_own(
    bench: Bench, engine: ScriptedEngine
) -> None:
    engine.say(Completion(f"never read{END}", delay_s=30), f"hello{END}")
    bench.log.open.set()
    with bench.session.start_turn(request(), anthropic_reply).waiting():
        await engine.arrived.wait()
    with bench.session.start_turn(request(), anthropic_reply).waiting() as outcome:
        assert (await outcome)["content"][0]["text"] == "hello"
    assert len(bench.log.stored) == 1


async def test_a_session_whose_creator_disconnected_is_there_for_its_retry(bench: Bench) -> None:
    bench.log.holds_sessions = True
    sampling = SessionSampling(temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=100)
    registry = SessionRegistry(bench.services, sampling, max_context_tokens=10_000)
    first = asyncio.create_task(registry.create(SessionRequest(session_id="s1"), "key"))
    await wait_until_storing(bench)
    first.cancel()
    await asyncio.wait([first])
    again = asyncio.create_task(registry.create(SessionRequest(session_id="s1"), "key"))
    await asyncio.wait({again}, timeout=0.05)
    bench.log.open.set()
    entry = await again
    assert registry.find_by_key(entry.key) is entry
    assert bench.log.session_ids == {"s1"}


async def test_a_session_may_be_deleted_while_others_end_with_the_gateway(
    bench: Bench, engine: ScriptedEngine
) -> None:
    engine.say(f"hello{END}")
    sampling = SessionSampling(temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=100)
    registry = SessionRegistry(bench.services, sampling, max_context_tokens=10_000)
    first, *_ = [await registry.create(SessionRequest(session_id=name)) for name in ("s1", "s2")]
    turn = first.session.start_turn(request(), anthropic_reply)
    await wait_until_storing(bench)
    closing = asyncio.create_task(registry.close())
    await asyncio.sleep(0)  # it waits for the first session's turn
    await registry.delete("s2")
    bench.log.open.set()
    await closing
    assert turn.outcome.result()["content"][0]["text"] == "hello"
    assert len(registry) == 0


async def store_turns(
    log: HeldTurnLog, turns: int, wire: Callable[[], None] = lambda: None
) -> list[BaseException | None]:
    """Store turns at once, of which the first one is held until all others wait for it; return what
    became of each.
    """
    journal = AsyncTurnLog()
    await journal.open(lambda: log)
    first = asyncio.create_task(journal.add_turn(a_turn(index=0), None, wire))
    assert await asyncio.to_thread(log.waiting.wait, 20)
    others = [
        asyncio.create_task(journal.add_turn(a_turn(index=i), None, wire)) for i in range(1, turns)
    ]
    await asyncio.sleep(0)  # each of them has begun
    assert not any(task.done() for task in (first, *others))
    log.open.set()
    outcomes = await asyncio.gather(first, *others, return_exceptions=True)
    await journal.close()
    return outcomes


async def test_turns_that_wait_for_another_are_stored_together() -> None:
    log = HeldTurnLog()
    assert await store_turns(log, 5) == [None] * 5
    assert [turn.index for turn in log.stored] == [0, 1, 2, 3, 4]
    assert log.together == [4]


async def test_of_turns_that_wait_only_those_fail_that_cannot_be_stored() -> None:
    log = HeldTurnLog()
    log.refused = {2}
    outcomes = await store_turns(log, 5)
    assert [type(outcome) for outcome in outcomes] == [
        *(type(None), type(None), StoreError, type(None), type(None))
    ]
    assert [turn.index for turn in log.stored] == [0, 1, 3, 4]
    assert log.together == []


async def test_turns_are_recorded_once_though_they_are_stored_apart() -> None:
    log, recorded = HeldTurnLog(), [0]
    log.refused = {2}

    def record() -> None:
        recorded[0] += 1

    await store_turns(log, 5, record)
    assert recorded == [5]


async def test_a_disk_that_failed_for_turns_together_is_not_tried_for_each() -> None:
    # one that another process has locked takes half a minute to fail
    log = HeldTurnLog()
    log.full = True
    outcomes = await store_turns(log, 5)
    assert [str(outcome) for outcome in outcomes] == ["the disk is full"] * 5
    assert log.tries == 2


async def test_a_turn_that_comes_with_the_end_is_stored_and_a_later_one_fails(
    tmp_path: Path,
) -> None:
    RunStore.create(tmp_path, {}).close()
    journal = AsyncTurnLog()
    await journal.open(lambda: RunStore.open(tmp_path))
    await journal.add_session("s", {})
    turn = asyncio.create_task(journal.add_turn(a_turn("s")))
    await asyncio.sleep(0)  # it has begun
    await journal.close()
    await turn
    with RunStore.open(tmp_path, read_only=True) as store:
        assert len(store.turns("s")) == 1
    with pytest.raises(StoreError, match="stopped"):
        await asyncio.wait_for(journal.add_turn(a_turn("s", 1)), 20)
