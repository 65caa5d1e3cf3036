"""The gateway with an endpoint of texts: every dialect of a client on every kind of endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conf.sections.section import ENGINE_KEY
from runners.records.store.run_store import RunStore
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.endpoint_servers import MODEL, Call, EndpointServer, TextAnswer
from tests.fakes.openai_clients import chat, respond
from tests.fakes.openai_server import OpenaiServer
from tests.fakes.running_gateway import (
    Gateway,
    assemble_message,
    echo,
    results,
    running_gateway,
    user,
)
from tests.fakes.vllm_server import VllmAnswer, VllmServer

NOWHERE = Path("nowhere")
LOOK = TextAnswer("I look.", (Call("Bash", {"command": "ls"}),), prompt_tokens=50, cached_tokens=20)


@asynccontextmanager
async def gateway_on(
    server: EndpointServer, tmp_path: Path, **changes: Any
) -> AsyncIterator[Gateway]:
    """Serve a gateway whose engine is the endpoint."""
    engine: dict[str, Any] = {"url": server.url, "model": MODEL}
    if isinstance(server, AnthropicServer):
        engine |= {"kind": "anthropic", "sampling_fields": ("temperature",)}
    else:
        fields = ("temperature", "top_p")
        engine |= {"kind": "openai", "sampling_fields": fields, "limit_field": "max_tokens"}
    settings = {"tokenizer": None, "renderer": "", "fixed_engine": engine, **changes}
    async with running_gateway(server.url, NOWHERE, tmp_path / "run", **settings) as gateway:
        yield gateway


@pytest.fixture(params=[OpenaiServer, AnthropicServer])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[EndpointServer]:
    async with request.param() as server:
        yield server


async def test_a_conversation_of_messages_is_recorded_without_ids(
    server: EndpointServer, tmp_path: Path
) -> None:
    server.say(LOOK, TextAnswer("Done.", prompt_tokens=90, completion_tokens=4))
    async with gateway_on(server, tmp_path) as gateway:
        agent = await gateway.session("s1")
        first = await agent.ask([user("fix it")])
        second = await agent.ask([user("fix it"), echo(first), results(first, "a.py")])
        turns = gateway.turns("s1")
        stats = (await agent.finish())["stats"]
        with RunStore.open(gateway.run_dir, read_only=True) as store:
            summary = store.session_summary("s1")
    assert [block["type"] for block in first["content"]] == ["text", "tool_use"]
    assert first["usage"]["input_tokens"] == 30
    assert first["usage"]["cache_read_input_tokens"] == 20
    assert second["content"] == [{"type": "text", "text": "Done."}]
    assert (second["stop_reason"], second["usage"]["output_tokens"]) == ("end_turn", 4)
    assert [turn.has_ids for turn in turns] == [False, False]
    assert [(turn.prompt_tokens, turn.output_tokens) for turn in turns] == [(50, 7), (90, 4)]
    assert [turn.parent for turn in turns] == [None, 0]
    assert [turn.weight_version for turn in turns] == [-1, -1]
    assert all(turn.segment == 0 and turn.break_reason is None for turn in turns)
    assert turns[1].request["messages"] == [
        {"role": "tool", "tool_call_id": first["content"][1]["id"], "content": "a.py"}
    ]
    assert turns[0].reply["tool_calls"][0]["function"]["arguments"] == {"command": "ls"}
    assert (stats["sampled_tokens"], summary.usage.sampled_tokens) == (11, 11)
    assert stats["breaks"] == []
    assert stats["retokenization_mismatches"] == 0


async def test_chat_completions_and_responses_are_served(
    server: EndpointServer, tmp_path: Path
) -> None:
    function = {"name": "shell", "parameters": {"type": "object", "properties": {}}}
    call = TextAnswer("", (Call("shell", {"command": ["ls"]}),), prompt_tokens=50)
    async with gateway_on(server, tmp_path) as gateway:
        agent = await gateway.session("chat")
        server.say(call, "Done.")
        asked = [{"role": "user", "content": "fix it"}]
        tools = [{"type": "function", "function": function}]
        first = await chat(agent, {"model": "m", "messages": asked, "tools": tools})
        message = first["choices"][0]["message"]
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        assert first["usage"]["prompt_tokens"] == 50
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "x"}
        again = {"model": "m", "messages": [*asked, message, result], "tools": tools}
        second = await chat(agent, again)
        assert second["choices"][0]["message"]["content"] == "Done."

        agent = await gateway.session("responses")
        server.say(call, "Done.")
        flat = [{"type": "function", "strict": False, **function}]
        items: list[dict[str, Any]] = [{"role": "user", "content": "fix it"}]
        answer = await respond(agent, {"model": "m", "input": items, "tools": flat})
        item = next(each for each in answer["output"] if each["type"] == "function_call")
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "x"}
        items += [item, output]
        answer = await respond(agent, {"model": "m", "input": items, "tools": flat})
        assert answer["output"][0]["content"][0]["text"] == "Done."
        for name in ("chat", "responses"):
            assert [turn.parent for turn in gateway.turns(name)] == [None, 0]
    assert len(server.requests) == 4


async def test_nothing_of_a_clients_body_is_passed_on(
    server: EndpointServer, tmp_path: Path
) -> None:
    async with gateway_on(server, tmp_path) as gateway:
        agent = await gateway.session("s1")
        await agent.ask(
            [user("hi")],
            model="the-expensive-one",
            temperature=0.0,
            top_k=3,
            thinking={"type": "enabled", "budget_tokens": 5000},
            metadata={"user_id": "me"},
            service_tier="auto",
            mcp_servers=[{"type": "url", "url": "http://x", "name": "x"}],
            tool_choice={"type": "any"},
            tools=[
                {"type": "web_search_20250305", "name": "web_search"},
                {
                    "name": "Bash",
                    "type": "computer_use",
                    "input_schema": {"type": "object"},
                    "cache_control": {"type": "ephemeral", "ttl": "1h"},
                },
            ],
        )
    [sent] = server.requests
    common = {"model", "messages", "tools", "max_tokens", "temperature", "stream"}
    own = {"system"} if isinstance(server, AnthropicServer) else {"top_p"}
    assert set(sent) == common | own
    assert sent["model"] == MODEL
    assert (sent["temperature"], sent["max_tokens"]) == (0.7, 1000)
    [tool] = sent["tools"]
    kinds = (
        {"name", "input_schema"} if isinstance(server, AnthropicServer) else {"type", "function"}
    )
    assert set(tool) == kinds
    assert "web_search" not in str(sent)


async def test_a_stream_assembles_to_the_answer(server: EndpointServer, tmp_path: Path) -> None:
    server.say(LOOK)
    async with gateway_on(server, tmp_path) as gateway:
        agent = await gateway.session("s1")
        message = assemble_message(await agent.stream(agent.body([user("fix it")])))
    assert [block["type"] for block in message["content"]] == ["text", "tool_use"]
    assert message["usage"]["output_tokens"] == 7


async def test_a_malformed_call_becomes_text_and_is_counted(tmp_path: Path) -> None:
    async with OpenaiServer("vllm") as server, gateway_on(server, tmp_path) as gateway:
        agent = await gateway.session("s1")
        server.say(TextAnswer("So:", (Call("Bash", '{"command": '),), reasoning="Hm."))
        answer = await agent.ask([user("hi")], thinking={"type": "enabled", "budget_tokens": 9})
        [turn] = gateway.turns("s1")
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    assert answer["content"][1]["text"] == 'So:\nBash({"command": )'
    assert (turn.malformed_calls, turn.reply["reasoning_content"]) == (1, "Hm.")


async def test_a_retry_gets_the_same_answer_and_another_request_forks(
    server: EndpointServer, tmp_path: Path
) -> None:
    server.say("one", "two", "three")
    async with gateway_on(server, tmp_path) as gateway:
        agent = await gateway.session("s1")
        first = await agent.ask([user("hi")])
        assert await agent.ask([user("hi")]) == first
        await agent.ask([user("hi"), echo(first), user("on")])
        await agent.ask([user("hi"), echo(first), user("elsewhere")])
        turns = gateway.turns("s1")
        breaks = (await agent.stats())["breaks"]
    assert [turn.segment for turn in turns] == [0, 0, 1]
    assert [turn.parent for turn in turns] == [None, 0, 0]
    assert len(breaks) == 1
    assert "before" not in breaks[0]


@pytest.mark.parametrize("dialect", ["openai", "llama.cpp", "vllm", "anthropic"])
async def test_an_endpoints_too_long_is_the_one_that_programs_know(
    tmp_path: Path, dialect: Any
) -> None:
    endpoint: EndpointServer = (
        AnthropicServer() if dialect == "anthropic" else OpenaiServer(dialect)
    )
    async with endpoint as server, gateway_on(server, tmp_path) as gateway:
        server.context = 10
        agent = await gateway.session("s1")
        server.say(TextAnswer(prompt_tokens=20), TextAnswer(prompt_tokens=20))
        status, answer = await agent.post("/v1/messages", agent.body([user("hi")]))
        assert status == 400
        assert answer["error"]["message"].startswith("prompt is too long")
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        status, answer = await agent.post("/v1/chat/completions", body)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert gateway.turns("s1") == []


async def test_vllms_own_too_long_is_the_same(tokenizer_dir: Path, tmp_path: Path) -> None:
    async with VllmServer() as server:
        engine = {"kind": "vllm", "url": server.url, "model": None}
        at = running_gateway(server.url, tokenizer_dir, tmp_path / "run", fixed_engine=engine)
        async with at as gateway:
            said = "This model's maximum context length is 9 tokens."
            server.say(VllmAnswer(status=400, message=said))
            agent = await gateway.session("s1")
            status, answer = await agent.post("/v1/messages", agent.body([user("hi")]))
    assert status == 400
    assert answer["error"]["message"].startswith("prompt is too long")


async def test_the_runs_own_window_holds_as_far_as_it_is_known(
    server: EndpointServer, tmp_path: Path
) -> None:
    server.say(TextAnswer("one", prompt_tokens=80), TextAnswer("two", prompt_tokens=120), "three")
    async with gateway_on(server, tmp_path, max_context_tokens=100) as gateway:
        agent = await gateway.session("s1")
        first = await agent.ask([user("hi")])
        second = [user("hi"), echo(first), user("on")]
        answer = await agent.ask(second)
        third = agent.body([*second, echo(answer), user("on")])
        status, refused = await agent.post("/v1/messages", third)
    assert [request["max_tokens"] for request in server.requests] == [100, 20]
    assert status == 400
    assert refused["error"]["message"] == "prompt is too long: 120 tokens > 100 maximum"


async def test_overload_is_retried_and_counted(server: EndpointServer, tmp_path: Path) -> None:
    server.say(
        TextAnswer(status=429, headers={"Retry-After": "0"}),
        TextAnswer(status=529),
        TextAnswer(cut=True),
        "done",
    )
    async with gateway_on(server, tmp_path, engine_attempts=5) as gateway:
        agent = await gateway.session("s1")
        answer = await agent.ask([user("hi")])
        stats = await agent.stats()
    assert answer["content"][0]["text"] == "done"
    assert stats["engine_retries"] == 3
    assert stats["pushed_back"] == 2


async def test_tokens_that_are_not_known_are_not_counted(
    server: EndpointServer, tmp_path: Path
) -> None:
    async with gateway_on(server, tmp_path) as gateway:
        agent = await gateway.session("s1")
        body = {"model": "m", "messages": [user("hi")]}
        status, answer = await agent.post("/v1/messages/count_tokens", body)
    assert status == 404
    assert "the endpoint's own" in answer["error"]["message"]


async def test_a_long_request_is_parsed_without_a_tokenizer(
    server: EndpointServer, tmp_path: Path
) -> None:
    async with gateway_on(server, tmp_path) as gateway:
        agent = await gateway.session("s1")
        await agent.ask([user("x" * (2 << 20))])
    assert "x" * (2 << 20) in str(server.requests[0]["messages"])


async def test_the_key_is_in_nothing_that_is_stored(
    server: EndpointServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-very-secret-1"
    monkeypatch.setenv(ENGINE_KEY, key)
    server.say(f"Your key is {key}", TextAnswer(status=401, message=f"wrong key {key}"))
    async with gateway_on(server, tmp_path) as gateway:
        agent = await gateway.session("s1")
        first = await agent.ask([user("hi")])
        status, refused = await agent.post("/v1/messages", agent.body([user("again")]))
    assert status == 500
    assert key not in f"{first}{refused}"
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if key.encode() in path.read_bytes()]
