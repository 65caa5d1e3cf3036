"""Google's API over HTTP: keys, streams, counts, errors, models; conversations without ids."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from agentrl.testing.completions import say, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from tests.fakes.running_gateway import Agent, Gateway

Block = dict[str, Any]
MODEL = "/v1beta/models/policy"
TOOLS = [
    {
        "functionDeclarations": [
            {
                "name": name,
                "parameters": {"type": "OBJECT", "properties": {"n": {"type": "STRING"}}},
            }
            for name in ("read", "run")
        ]
    }
]
CALLS: list[Block] = [
    {"type": "text", "text": "I look."},
    *(
        {"type": "tool_use", "name": name, "input": {"n": number}}
        for name, number in (("read", "1"), ("run", "2"), ("read", "3"))
    ),
]


def user(*parts: Block) -> Block:
    return {"role": "user", "parts": list(parts)}


def text(words: str) -> Block:
    return {"text": words}


def body(*contents: Block, **more: Any) -> Block:
    return {"contents": [user(text("Fix it.")), *contents], "tools": TOOLS, **more}


async def ask(agent: Agent, sent: Block) -> Block:
    status, answer = await agent.post(f"{MODEL}:generateContent", sent)
    assert status == 200, answer
    content: Block = answer["candidates"][0]["content"]
    return content


async def get(agent: Agent, path: str, **headers: str) -> tuple[int, Block]:
    async with agent.gateway.http.get(agent.gateway.url + path, headers=headers) as response:
        return response.status, orjson.loads(await response.read())


def without_ids(content: Block) -> Block:
    parts = [
        {"functionCall": {key: call[key] for key in ("name", "args")}}
        if (call := part.get("functionCall"))
        else part
        for part in content["parts"]
    ]
    return {**content, "parts": parts}


def results(content: Block, *, ids: bool) -> list[Block]:
    calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    return [
        {
            "functionResponse": {
                **({"id": call["id"]} if ids else {}),
                "name": call["name"],
                "response": {"output": f"of {call['args']['n']}"},
            }
        }
        for call in calls
    ]


@pytest.mark.parametrize("ids", [True, False])
async def test_parallel_calls_and_their_results_are_one_chain_with_ids_and_without(
    ids: bool, gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(spoken(CALLS, thinking="Hm."), spoken(CALLS[1:2]), say("Done."))
    contents: list[Block] = []
    issued: list[str] = []
    for _ in range(2):
        content = await ask(agent, body(*contents))
        issued += [p["functionCall"]["id"] for p in content["parts"] if "functionCall" in p]
        contents += [content if ids else without_ids(content), user(*results(content, ids=ids))]
    assert (await ask(agent, body(*contents)))["parts"] == [text("Done.")]
    stored = [
        message["tool_call_id"]
        for turn in gateway.turns("s1")[1:]
        for message in turn.request["messages"]
        if message["role"] == "tool"
    ]
    assert stored == issued, "each result is stored with the id of its call"
    finished = await agent.finish()
    (chain,) = finished["segments"]
    trained = [t for t, m in zip(chain["tokens"], chain["loss_mask"], strict=True) if m]
    assert trained == [token for ids_, _ in engine.seen.answered for token in ids_]
    assert (finished["stats"]["breaks"], finished["stats"]["mechanical"]) == ([], {})


async def test_a_changed_call_without_an_id_is_an_edit(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(spoken(CALLS[1:2]), say("Done."))
    content = without_ids(await ask(agent, body()))
    content["parts"][0]["functionCall"]["args"] = {"n": "other"}
    answer = {"functionResponse": {"name": "read", "response": {"output": "x"}}}
    await ask(agent, body(content, user(answer)))
    assert [each["kind"] for each in (await agent.stats())["breaks"]] == ["edit"]


async def test_missing_and_foreign_results_are_shown_and_go_on(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(spoken(CALLS), say("Well."), say("Done."))
    content = without_ids(await ask(agent, body()))
    foreign = {"functionResponse": {"name": "nope", "response": {"output": "foreign"}}}
    contents = [content, user(foreign, *results(content, ids=False)[:1])]
    contents += [await ask(agent, body(*contents)), user(text("And?"))]
    await ask(agent, body(*contents))
    finished = await agent.finish()
    assert finished["stats"]["trained_tokens"] == finished["stats"]["sampled_tokens"]
    kinds = [each["kind"] for each in finished["stats"]["breaks"]]
    assert kinds == ["rewrite"], "a result of no call cannot be told from a crossed one"


async def test_a_stream_is_the_body_and_a_retry_gets_it_again(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(spoken(CALLS, thinking="Hm."))
    sent = body(generationConfig={"thinkingConfig": {"includeThoughts": True}})
    url = f"{gateway.url}{MODEL}:streamGenerateContent"
    async with gateway.http.post(
        f"{url}?alt=sse", json=sent, headers={"x-goog-api-key": agent.key}
    ) as response:
        assert response.content_type == "text/event-stream"
        stream = (await response.read()).strip()
    assert stream.startswith(b"data: ")
    streamed = orjson.loads(stream.removeprefix(b"data: "))
    status, plain = await agent.post(f"{MODEL}:generateContent", sent)
    assert (status, plain) == (200, streamed)
    assert plain["candidates"][0]["content"]["parts"][0] == {"text": "Hm.", "thought": True}
    assert plain["modelVersion"] == "policy"
    stats = await agent.stats()
    assert (stats["turns"], stats["retries"]) == (1, 1)
    async with gateway.http.post(url, json=sent, headers={"x-goog-api-key": agent.key}) as response:
        assert response.status == 400
        assert "alt=sse" in (await response.json())["error"]["message"]


async def test_a_count_is_the_length_of_the_prompt(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(say("Done."))
    await ask(agent, body())
    whole = {"generateContentRequest": {"model": "models/policy", **body()}}
    status, counted = await agent.post(f"{MODEL}:countTokens", whole)
    assert (status, counted) == (200, {"totalTokens": len(engine.seen.requests[0]["input_ids"])})


async def test_the_key_comes_in_googles_header_or_in_the_query(gateway: Gateway) -> None:
    agent = await gateway.session()
    described = {
        "name": "models/policy",
        "displayName": "policy",
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    assert await get(agent, f"{MODEL}?key={agent.key}") == (200, described)
    header = {"x-goog-api-key": agent.key}
    for version in ("v1", "v1beta"):
        assert await get(agent, f"/{version}/models", **header) == (200, {"models": [described]})
    status, refused = await get(agent, f"{MODEL}?key=wrong")
    assert (status, refused["error"]["status"]) == (401, "UNAUTHENTICATED")
    status, refused = await get(agent, f"/admin/sessions/s1?key={gateway.admin_key}")
    assert status == 401, "the admin key is not taken from a URL, which proxies log"


@pytest.mark.parametrize(
    "path", [f"{MODEL}:embedContent", f"{MODEL}:", "/v1beta/models/:generateContent", "/v1beta/x"]
)
async def test_what_is_not_served_is_not_found_in_googles_words(
    path: str, gateway: Gateway
) -> None:
    agent = await gateway.session()
    status, refused = await agent.post(path, body())
    assert (status, refused["error"]["status"]) == (404, "NOT_FOUND")
