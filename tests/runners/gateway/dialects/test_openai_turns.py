"""Turns of OpenAI's dialects, through a whole gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from agentrl.testing.completions import END, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.dialects.sse import COMMENT_PING
from tests.fakes.openai_clients import (
    assembled_chat,
    assembled_response,
    chat,
    chunks,
    respond,
    response_events,
    stream,
)
from tests.fakes.running_gateway import Agent, Gateway, user

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
LOOKS: list[dict[str, Any]] = [
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "name": "bash", "input": {"command": "ls"}},
    {"type": "tool_use", "name": "bash", "input": {"command": "pwd"}},
]
DONE = f"Fixed.{END}"


def chat_body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}
    opening = [{"role": "system", "content": "You fix bugs."}, user("fix it")]
    return {"model": "m", "tools": [tool], "messages": [*opening, *messages], **more}


def responses_body(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    tools = [{"type": "function", "name": "bash", "parameters": SCHEMA}]
    opening = [user("fix it")]
    instructions = "You fix bugs."
    return {
        **{"model": "m", "instructions": instructions, "tools": tools},
        "input": [*opening, *items],
        **more,
    }


BODIES: list[tuple[str, Callable[..., dict[str, Any]]]] = [
    (CHAT, chat_body),
    (RESPONSES, responses_body),
]
"""Both dialects' bodies of the same conversation."""


async def is_trained_exactly(agent: Agent, engine: ScriptedEngine) -> bool:
    """Tell whether the session is one chain that trains what was sampled, and nothing else."""
    finished = await agent.finish()
    (chain,) = finished["segments"]
    trained = [t for t, m in zip(chain["tokens"], chain["loss_mask"], strict=True) if m]
    return trained == [token for ids, _ in engine.seen.answered for token in ids]


@pytest.mark.parametrize("echoed", ['{"command":"ls"}', '{"cwd": null, "command": "l\\u0073"}'])
async def test_chat_recognises_its_calls_in_whatever_form_they_come_back(
    echoed: str, gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(spoken(LOOKS, thinking="hm"), DONE)
    message = (await chat(agent, chat_body()))["choices"][0]["message"]
    assert message["content"] == "I look.", "text beside calls is not lost"
    commands = [orjson.loads(c["function"]["arguments"]) for c in message["tool_calls"]]
    assert commands == [{"command": "ls"}, {"command": "pwd"}]
    message["tool_calls"][0]["function"]["arguments"] = echoed
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "out"}
        for call in message["tool_calls"]
    ]
    last = await chat(agent, chat_body(message, *results))
    assert last["choices"][0]["message"] == {"role": "assistant", "content": "Fixed."}
    assert last["choices"][0]["finish_reason"] == "stop"
    prompt = len(engine.seen.requests[1]["input_ids"])
    answered = len(engine.seen.answered[1][0])
    assert last["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": answered,
        "total_tokens": prompt + answered,
        "prompt_tokens_details": {"cached_tokens": prompt // 2},
    }
    assert await is_trained_exactly(agent, engine)


@pytest.mark.parametrize("shows", [True, False])
async def test_responses_recognises_its_items_when_they_come_back(
    shows: bool, gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(spoken(LOOKS, thinking="hm"), DONE)
    reasoning = {"effort": "high" if shows else "none"}
    items = (await respond(agent, responses_body(reasoning=reasoning)))["output"]
    kinds = [item["type"] for item in items]
    assert kinds == ["reasoning"] * shows + ["message", "function_call", "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "out"}
        for item in items
        if item["type"] == "function_call"
    ]
    last = await respond(agent, responses_body(*items, *outputs, reasoning=reasoning))
    assert last["output"][0]["content"][0]["text"] == "Fixed."
    assert await is_trained_exactly(agent, engine)


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_retry_is_answered_the_same_streamed_or_not(
    path: str, body: Callable[..., dict[str, Any]], gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(spoken(LOOKS, thinking="hm"))
    usage = {"stream_options": {"include_usage": True}}
    first = await stream(agent, path, {**body(), **usage})
    again = await stream(agent, path, {**body(), **usage})
    status, plain = await agent.post(path, body())
    # on a busy machine a ping may come before the answer, in one of them only
    assert first.replace(COMMENT_PING, b"") == again.replace(COMMENT_PING, b"")
    if path == CHAT:
        assert assembled_chat(chunks(first)) == plain
    else:
        assert assembled_response(response_events(first)) == plain
    assert (status, (await agent.stats())["retries"]) == (200, 2)


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_an_answer_cut_by_the_clients_limit_has_that_finish_reason(
    path: str, body: Callable[..., dict[str, Any]], gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say("one two three four")
    limit = {"max_completion_tokens": 2} if path == CHAT else {"max_output_tokens": 2}
    whole = await stream(agent, path, body(**limit))
    assert engine.seen.requests[0]["sampling_params"]["max_new_tokens"] == 2
    if path == CHAT:
        assert assembled_chat(chunks(whole))["choices"][0]["finish_reason"] == "length"
    else:
        assert response_events(whole)[-1]["type"] == "response.incomplete"


async def test_codexs_sub_agents_are_kept_apart_by_their_headers(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(DONE, DONE, DONE)
    await stream(agent, RESPONSES, responses_body(), **{"session-id": "s", "thread-id": "s"})
    for name in ("t1", "t2"):
        headers = {"session-id": "s", "thread-id": name, "x-codex-parent-thread-id": "s"}
        await stream(agent, RESPONSES, responses_body(), **headers)
    finished = await agent.finish()
    assert [chain["thread"] for chain in finished["segments"]] == ["main", "t1", "t2"]


async def test_a_long_turn_metadata_header_is_taken(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(DONE)
    headers = {"x-codex-turn-metadata": orjson.dumps({"workspaces": "w" * 20_000}).decode()}
    await stream(agent, RESPONSES, responses_body(), **headers)
