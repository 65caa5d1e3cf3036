"""Routing from a scripted engine into the store: each turn's rows once, and every loss counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from agentrl.testing.completions import Completion, routed, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.observe.export.run_dump import dump
from runners.records.graph import build_segments
from runners.records.routing import RoutingShape, build_segment_routing
from runners.records.store.run_store import RunStore
from runners.rollouts.harnesses.native import agent as native
from runners.rollouts.harnesses.native.client import Messages
from tests.fakes.routing_checks import check_trained_rows, stored_routing
from tests.fakes.running_gateway import Gateway, echo, results, running_gateway, user

SHAPE = RoutingShape(layers=3, top_k=2, experts=64, routed=(1, 2))
LOOK = spoken([{"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}])
DONE = spoken([{"type": "text", "text": "Done."}])


@pytest.fixture
async def gateway(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> AsyncIterator[Gateway]:
    """Serve a gateway that captures the routing of an engine that has some."""
    engine.shape = SHAPE
    async with running_gateway(
        engine.url, tokenizer_dir, tmp_path / "run", routing=asdict(SHAPE)
    ) as gateway:
        yield gateway


def requested_starts(engine: ScriptedEngine) -> list[int]:
    """Return the first row that the engine was asked for, by call."""
    return [request["routed_experts_start_len"] for request in engine.seen.requests]


def path_lengths(engine: ScriptedEngine) -> list[int]:
    """Return prompt + output of each call."""
    calls = zip(engine.seen.requests, engine.seen.answered, strict=True)
    return [len(request["input_ids"]) + len(output) for request, (output, _) in calls]


def choose_experts(tokens: NDArray[np.int32], version: int) -> NDArray[np.int32]:
    """Return the experts that the scripted engine chooses."""
    return routed(SHAPE, tokens.tolist(), version)


def check_rows(gateway: Gateway) -> list[int]:
    """Check the stored routing against the scripted engine's; return the weight versions."""
    return check_trained_rows(gateway, choose_experts, SHAPE)


async def converse(gateway: Gateway, turns: int) -> None:
    """Take turns of a tool loop in session s1."""
    agent = await gateway.session()
    messages = [user("fix it")]
    for _ in range(turns):
        answer = await agent.ask(messages)
        messages += [echo(answer), results(answer, "a.py")]
    await agent.finish()


async def test_a_turn_asks_from_the_first_missing_row_and_stores_exactly_the_rest(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    engine.say(LOOK, LOOK, LOOK)
    await converse(gateway, 3)
    ends = path_lengths(engine)
    assert requested_starts(engine) == [0, ends[0] - 1, ends[1] - 1]
    held = stored_routing(gateway)
    assert [(held[turn].start, len(held[turn].experts)) for turn in range(3)] == [
        (0, ends[0] - 1),
        (ends[0] - 1, ends[1] - ends[0]),
        (ends[1] - 1, ends[2] - ends[1]),
    ]
    assert check_rows(gateway) == [1]


async def test_a_weight_update_between_turns_leaves_each_token_the_rows_it_was_sampled_with(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    engine.say(LOOK, Completion(LOOK, weight_version="2"), LOOK)
    await converse(gateway, 3)
    assert check_rows(gateway) == [1, 2]
    assert [part.weight_version for part in stored_routing(gateway).values()] == [1, 2, 2]


async def test_sub_agents_a_compaction_a_retry_and_updates_in_the_middle_keep_their_own_rows(
    gateway: Gateway,
    engine: ScriptedEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def call(name: str, **arguments: str) -> str:
        return spoken([{"type": "tool_use", "name": name, "input": arguments}])

    (tmp_path / "a.py").write_text("def add(a, b):\n    return a - b\n")
    monkeypatch.chdir(tmp_path)
    said = spoken([{"type": "text", "text": "a.py subtracts"}])
    engine.say(
        call("Agent", prompt="look at a.py"),
        call("Read", path="a.py"),
        Completion(said, finish="abort"),  # the sub-agent asks again
        Completion(said, weight_version="2"),
        call("Submit", message="it subtracts"),
        said,
        Completion(call("Edit", path="a.py", old_string="-", new_string="+"), weight_version="3"),
        call("Submit", message="done"),
    )
    session = await gateway.session()
    settings = {"model": "policy", "max_turns": 9, "max_tokens": 500}
    settings |= {"dispatch": True, "window_tokens": 1}
    messages = Messages(gateway.url, session.key, backoff_s=0.01)
    await asyncio.to_thread(native.solve, messages, "fix a.py", settings)
    messages.connection.close()
    assert len(engine.seen.requests) == len(gateway.turns("s1")) + 1
    kinds = {chain.kind for chain in build_segments(gateway.turns("s1"))}
    assert kinds == {"wipe", "subagent", "compaction", "final"}
    assert check_rows(gateway) == [1, 2, 3]
    assert (await session.stats())["routing_missing"] == 0


async def test_a_retried_request_stores_no_second_rows(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(LOOK, LOOK)
    first = await agent.ask([user("fix it")])
    assert await agent.ask([user("fix it")]) == first
    await agent.ask([user("fix it"), echo(first), results(first, "a.py")])
    assert len(engine.seen.requests) == 2
    assert sorted(stored_routing(gateway)) == [0, 1]
    check_rows(gateway)


async def test_a_fork_goes_on_from_the_rows_of_the_turn_that_it_leaves(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(LOOK, LOOK, LOOK)
    first = await agent.ask([user("fix it")])
    before = [user("fix it"), echo(first)]
    await agent.ask([*before, results(first, "a.py")])
    await agent.ask([*before, results(first, "b.py")])
    ends = path_lengths(engine)
    assert requested_starts(engine) == [0, ends[0] - 1, ends[0] - 1]
    assert len(build_segments(gateway.turns("s1"))) == 2
    check_rows(gateway)


async def test_an_aborted_generation_leaves_no_rows_and_its_retry_asks_the_same(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(LOOK, Completion(LOOK, finish="abort"), LOOK)
    first = await agent.ask([user("fix it")])
    messages = [user("fix it"), echo(first), results(first, "a.py")]
    status, _ = await agent.post("/v1/messages", agent.body(messages))
    assert status != 200
    await agent.ask(messages)
    assert requested_starts(engine)[1] == requested_starts(engine)[2]
    assert sorted(stored_routing(gateway)) == [0, 1]
    check_rows(gateway)


@pytest.mark.parametrize(
    ("sent", "said"),
    [("none", "no routing"), ("short", "ids of experts for"), ("whole", "ids of experts for")],
)
async def test_missing_rows_are_counted_and_the_next_turn_asks_for_them(
    sent: str, said: str, gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(LOOK, Completion(LOOK, routing=sent), LOOK)
    messages = [user("fix it")]
    for _ in range(2):
        answer = await agent.ask(messages)
        messages += [echo(answer), results(answer, "a.py")]
    stats = await agent.stats()
    assert stats["routing_missing"] == 1
    assert said in stats["routing_fault"]
    (chain,) = build_segments(gateway.turns("s1"))
    ends = path_lengths(engine)
    valid = build_segment_routing(chain, stored_routing(gateway), SHAPE).valid
    assert valid.tolist() == [True] * (ends[0] - 1) + [False] * (ends[1] - ends[0] + 1)
    await agent.ask(messages)
    assert requested_starts(engine) == [0, ends[0] - 1, ends[0] - 1]
    check_rows(gateway)


async def test_rows_that_a_later_turn_brings_with_other_weights_are_not_the_gap_s_own(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    engine.say(Completion(LOOK, routing="none"), Completion(LOOK, weight_version="2"))
    await converse(gateway, 2)
    (chain,) = build_segments(gateway.turns("s1"))
    routing = build_segment_routing(chain, stored_routing(gateway), SHAPE)
    sampled_before = np.append(chain.weight_versions[1:] == 1, False)
    assert sampled_before.any()
    assert (routing.valid == ~sampled_before)[:-1].all()


async def test_an_engine_without_routing_is_counted_in_every_turn_and_still_answers(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    engine.shape = None
    engine.say(LOOK, LOOK)
    await converse(gateway, 2)
    assert (await gateway.admin.stats("s1"))["routing_missing"] == 2
    assert stored_routing(gateway) == {}
    assert requested_starts(engine) == [0, 0]


async def test_a_gateway_that_captures_no_routing_asks_for_none(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    engine.shape = SHAPE
    engine.say(LOOK)
    async with running_gateway(engine.url, tokenizer_dir, tmp_path / "run") as gateway:
        await converse(gateway, 1)
        assert "return_routed_experts" not in engine.seen.requests[0]
        assert stored_routing(gateway) == {}
        assert (await gateway.admin.stats("s1"))["routing_missing"] == 0


@pytest.mark.parametrize(("experts", "width"), [(255, 1), (256, 1), (257, 2)])
async def test_the_last_expert_of_a_byte_and_the_first_beyond_survive_the_store(
    experts: int, width: int, engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    shape = RoutingShape(layers=2, top_k=4, experts=experts, routed=(0, 1))
    engine.shape = shape
    engine.say(LOOK)
    async with running_gateway(
        engine.url, tokenizer_dir, tmp_path / "run", routing=asdict(shape)
    ) as gateway:
        await converse(gateway, 1)
        (part,) = stored_routing(gateway).values()
        assert part.experts.itemsize == width
        assert int(part.experts.max()) == experts - 1
        check_trained_rows(
            gateway, lambda ids, version: routed(shape, ids.tolist(), version), shape
        )


async def test_routing_is_in_no_json_and_the_dump_only_marks_its_presence(
    gateway: Gateway, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.say(LOOK, Completion(LOOK, routing="none"))
    await converse(gateway, 2)
    (first,) = stored_routing(gateway).values()
    raw = (gateway.run_dir / "arrays" / "routing.bin").read_bytes()
    assert raw == first.experts.tobytes(), "its rows, in a byte each, and nothing else"
    with RunStore.open(gateway.run_dir, read_only=True) as store:
        for row in store.query("SELECT request, reply, usage FROM turn"):
            assert not any("routed" in text or "experts" in text for text in row)
        dump(store, tmp_path / "dump", formats=("jsonl",))
    assert "experts" not in (tmp_path / "dump" / "trajectories.jsonl").read_text()
