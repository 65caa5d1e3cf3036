"""Sessions of an engine that fails or refuses, and the limits on calls and turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.testing.completions import END, Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.refusal import TURNS_SPENT
from tests.fakes.running_gateway import Gateway, running_gateway, user

DONE = f"Done.{END}"


@pytest.fixture
async def patient_gateway(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> AsyncIterator[Gateway]:
    """Serve a gateway that tries three times."""
    run_dir = tmp_path / "run"
    async with running_gateway(engine.url, tokenizer_dir, run_dir, engine_attempts=3) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("fault", "pushed_back", "aborted"),
    [
        (Completion(status=500), 0, 1),
        (Completion(status=503), 1, 0),
        (Completion(status=429), 1, 0),
        (Completion("half", finish="abort"), 0, 0),
    ],
    ids=["500", "503", "429", "abort"],
)
async def test_a_passing_fault_is_hidden_from_the_agent(
    fault: Completion,
    pushed_back: int,
    aborted: int,
    patient_gateway: Gateway,
    engine: ScriptedEngine,
) -> None:
    agent = await patient_gateway.session(seed=7)
    engine.say(fault, DONE)
    assert (await agent.ask([user("hi")]))["stop_reason"] == "end_turn"
    first, second = engine.seen.requests
    assert first["rid"] != second["rid"]
    assert first["input_ids"] == second["input_ids"]
    assert first["sampling_params"] == second["sampling_params"]
    stats = (await agent.finish())["stats"]
    assert (stats["turns"], stats["engine_retries"], stats["failed"]) == (1, 1, 0)
    assert stats["pushed_back"] == pushed_back
    assert len(patient_gateway.turns("s1")) == 1
    while len(engine.seen.aborted) < aborted:
        await asyncio.sleep(0.01)
    assert engine.seen.aborted == [first["rid"]] * aborted


async def test_engine_calls_keep_the_rate_limit(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    rare = running_gateway(engine.url, tokenizer_dir, tmp_path / "run", engine_calls_per_s=0.001)
    async with rare as gateway:
        one, two = await gateway.session("s1"), await gateway.session("s2")
        engine.say(DONE, DONE)
        await one.ask([user("hi")])
        waiting = asyncio.create_task(two.ask([user("hi")]))
        while not (await two.stats())["in_flight"]:
            await asyncio.sleep(0.01)
        await asyncio.wait({waiting}, timeout=0.1)
        assert len(engine.seen.requests) == 1
        waiting.cancel()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
async def test_a_turn_beyond_the_sessions_budget_is_refused_in_every_dialect(
    path: str, gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session(max_turns=1)
    engine.say(DONE)
    await agent.ask([user("hi")])
    words = {"input": "more"} if path == "/v1/responses" else {"messages": [user("more")]}
    limit = {} if path == "/v1/responses" else {"max_tokens": 9}
    status, body = await agent.post(path, {"model": "policy", **words, **limit})
    assert (status, body["error"]["message"]) == (403, f"{TURNS_SPENT}: 1 of them")
    assert len(engine.seen.requests) == 1


async def test_a_retry_is_answered_when_the_turns_are_spent(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session(max_turns=1)
    engine.say(DONE)
    first = await agent.ask([user("hi")])
    assert await agent.ask([user("hi")]) == first


async def test_a_failed_generation_is_not_counted_as_a_turn(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session(max_turns=1)
    engine.say(Completion(status=400), DONE)
    assert (await agent.post("/v1/messages", agent.body([user("hi")])))[0] == 400
    assert (await agent.ask([user("hi")]))["stop_reason"] == "end_turn"


async def test_turns_in_flight_count_too(gateway: Gateway, engine: ScriptedEngine) -> None:
    agent = await gateway.session(max_turns=2)
    engine.say(DONE, DONE)
    bodies = [agent.body([user(f"task {number}")]) for number in range(3)]
    answers = await asyncio.gather(*(agent.post("/v1/messages", body) for body in bodies))
    assert sorted(status for status, _ in answers) == [200, 200, 403]
    assert (await agent.stats())["turns"] == 2
