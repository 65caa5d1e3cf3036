"""Keys that the gateway does not know: ignored, counted and named once, however many there are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.dialects.body import MAX_UNKNOWN
from runners.gateway.dialects.endpoints import DIALECTS, find_endpoint
from runners.gateway.sessions.session import MAX_IGNORED
from tests.fakes.running_gateway import Gateway, user

PATHS: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/messages": lambda text: {"max_tokens": 9, "messages": [user(text)]},
    "/v1/chat/completions": lambda text: {"messages": [user(text)]},
    "/v1/responses": lambda text: {"input": text},
    "/v1beta/models/m:generateContent": lambda text: {"contents": {"parts": {"text": text}}},
}
OF_OTHER_SERVERS: dict[str, Any] = {
    "min_tokens": 5,
    "chat_template_kwargs": {"enable_thinking": False},
    "provider": {"order": ["a"]},
    "rid": "r",
    "model_dump": 1,  # names of the parser's own are nothing special
    "__class__": {},
    "unknown_keys": [],
}


@pytest.mark.parametrize("path", PATHS)
async def test_unknown_keys_are_ignored_counted_and_named_once(
    path: str, gateway: Gateway, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await gateway.session()
    engine.always = Completion("ok<|im_end|>")
    with caplog.at_level(logging.WARNING, "runners.gateway.sessions.session"):
        for text in ("a", "b", "c"):
            body = {"model": "m", **PATHS[path](text), **OF_OTHER_SERVERS}
            status, answer = await agent.post(path, body)
            assert status == 200, answer
    stats = await agent.stats()
    assert stats["unknown_keys"] == 3 * len(OF_OTHER_SERVERS)
    assert stats["ignored"] == dict.fromkeys(OF_OTHER_SERVERS, 3)
    (line,) = caplog.messages
    assert line.startswith("session s1: ignored in its requests: ")
    assert "chat_template_kwargs" in line
    sent = engine.seen.requests[0]["sampling_params"]
    assert "min_tokens" not in sent, "sampling is the campaign's"


async def test_a_client_that_makes_up_keys_fills_neither_the_counters_nor_the_log(
    gateway: Gateway, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await gateway.session()
    engine.always = Completion("ok<|im_end|>")
    with caplog.at_level(logging.WARNING, "runners.gateway.sessions.session"):
        for number in range(20):
            keys = {f"{number} {key}\n\x1b[2J" + "k" * 1000: None for key in range(1000)}
            status, _ = await agent.post("/v1/messages", agent.body([user(str(number))], **keys))
            assert status == 200
    stats = await agent.stats()
    assert stats["unknown_keys"] == 20_000
    assert len(stats["ignored"]) == MAX_IGNORED + 1
    assert all(len(name) <= 64 for name in stats["ignored"])
    assert not any("\n" in name or "\x1b" in name for name in stats["ignored"])
    (line,) = caplog.messages
    assert len(line) < 600
    assert "\n" not in line
    assert "\x1b" not in line


@pytest.mark.parametrize("path", PATHS)
def test_a_request_names_some_of_its_unknown_keys_and_counts_all(path: str) -> None:
    keys = dict.fromkeys(map(str, range(1000)))
    body = orjson.dumps({"model": "m", **PATHS[path]("hi"), **keys})
    request = DIALECTS[find_endpoint(path, {}).path].parse_request(body, {}).request
    assert request.ignored == tuple(map(str, range(MAX_UNKNOWN)))
    assert request.unknown_keys == 1000
