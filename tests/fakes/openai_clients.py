"""Read OpenAI's streams as its clients do, holding them to the protocols' order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from tests.fakes.running_gateway import Agent

PING = b": ping"


def frames(stream: bytes) -> list[bytes]:
    """Split a stream into its frames, comments left out."""
    assert stream.endswith(b"\n\n")
    whole = stream.removesuffix(b"\n\n").split(b"\n\n")
    return [frame for frame in whole if frame != PING]


def chunks(stream: bytes) -> list[dict[str, Any]]:
    """Read the chunks of a chat completion; the stream ends with ``[DONE]``."""
    found = frames(stream)
    assert found.pop() == b"data: [DONE]"
    return [orjson.loads(frame.removeprefix(b"data: ")) for frame in found]


def assembled_chat(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a streamed completion together."""
    first = stream[0]
    assert first["choices"][0]["delta"]["role"] == "assistant"
    message: dict[str, Any] = {"role": "assistant", "content": None}
    finish, usage = None, None
    for chunk in stream:
        assert chunk["object"] == "chat.completion.chunk"
        assert [chunk[key] for key in ("id", "created", "model")] == [
            first[key] for key in ("id", "created", "model")
        ]
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            assert finish is None, "nothing follows the finish reason"
            finish = choice["finish_reason"]
            delta = choice["delta"]
            if delta.get("content") is not None:
                message["content"] = (message["content"] or "") + delta["content"]
            for part in delta.get("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if part["index"] == len(calls):
                    named = {key: part[key] for key in ("id", "type")}
                    calls.append({**named, "function": dict(part["function"])})
                else:
                    calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    head = {key: first[key] for key in ("id", "created", "model")}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def response_events(stream: bytes) -> list[dict[str, Any]]:
    """Read the events of a response: named by their type, numbered from 0."""
    found = []
    for number, frame in enumerate(frames(stream)):
        name, data = frame.split(b"\n")
        event = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        assert event["sequence_number"] == number
        found.append(event)
    return found


def assembled_response(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a streamed response together from its deltas; every ``done`` must agree."""
    assert [event["type"] for event in stream[:2]] == ["response.created", "response.in_progress"]
    assert stream[0]["response"]["status"] == stream[1]["response"]["status"] == "in_progress"
    items: list[dict[str, Any]] = []
    for event in stream[2:-1]:
        kind = event["type"].removeprefix("response.")
        assert "response" not in event
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            items.append(orjson.loads(orjson.dumps(event["item"])))
            continue
        item = items[event["output_index"]]
        assert event["output_index"] == len(items) - 1
        if kind == "output_item.done":
            item["status"] = event["item"].get("status")
            if item["status"] is None:
                del item["status"]
            assert item == event["item"]
            continue
        assert event["item_id"] == item["id"]
        match kind.split("."):
            case ["content_part", "added"]:
                assert event["content_index"] == len(item["content"])
                item["content"].append(dict(event["part"]))
            case ["content_part", "done"]:
                assert item["content"][event["content_index"]] == event["part"]
            case ["output_text" | "reasoning_text" as name, "delta"]:
                assert item["content"][event["content_index"]]["type"] == name
                item["content"][event["content_index"]]["text"] += event["delta"]
            case ["output_text" | "reasoning_text", "done"]:
                assert item["content"][event["content_index"]]["text"] == event["text"]
            case ["function_call_arguments", "delta"]:
                item["arguments"] += event["delta"]
            case ["function_call_arguments", "done"]:
                assert item["arguments"] == event["arguments"]
            case ["custom_tool_call_input", "delta"]:
                item["input"] += event["delta"]
            case ["custom_tool_call_input", "done"]:
                assert item["input"] == event["input"]
            case _:
                raise AssertionError(event["type"])
    last = stream[-1]
    assert last["type"] == f"response.{last['response']['status']}"
    assert last["response"]["id"] == stream[0]["response"]["id"]
    assert last["response"]["created_at"] == stream[0]["response"]["created_at"]
    return {**last["response"], "output": items}


async def stream(agent: Agent, path: str, body: Mapping[str, Any], **headers: str) -> bytes:
    """Take a turn by streaming; return what came."""
    async with opened(agent, path, body, **headers) as response:
        assert response.status == 200, await response.read()
        assert response.content_type == "text/event-stream"
        return await response.read()


def opened(
    agent: Agent, path: str, body: Mapping[str, Any], **headers: str
) -> aiohttp.client._RequestContextManager:
    """Ask for a turn by streaming."""
    return agent.gateway.http.post(
        agent.gateway.url + path,
        data=orjson.dumps({**body, "stream": True}),
        headers={"authorization": f"Bearer {agent.key}", **headers},
    )


async def chat(agent: Agent, body: Mapping[str, Any]) -> dict[str, Any]:
    """Take a turn of Chat Completions without streaming; fails unless it is answered."""
    status, answer = await agent.post("/v1/chat/completions", body)
    assert status == 200, answer
    return answer


async def respond(agent: Agent, body: Mapping[str, Any]) -> dict[str, Any]:
    """Take a turn of Responses without streaming; fails unless it is answered."""
    status, answer = await agent.post("/v1/responses", body)
    assert status == 200, answer
    return answer
