"""The client of endpoints, against stand-ins for both APIs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from conf.sections.engine import AnthropicEngineConfig, OpenaiEngineConfig
from conf.sections.section import ENGINE_KEY
from runners.engines.contract import (
    Conversation,
    EngineError,
    Generation,
    SamplingParams,
    TextCall,
)
from runners.engines.endpoints.client import EndpointEngine, find_room
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.endpoint_servers import MODEL, Call, EndpointServer, TextAnswer
from tests.fakes.openai_server import OpenaiServer

SHELL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
KEY = "sk-secret/7"


def make_engine(server: EndpointServer, **changes: Any) -> EndpointEngine:
    common = {"url": server.url, "model": MODEL}
    if isinstance(server, AnthropicServer):
        found = {"kind": "anthropic", "sampling_fields": ("temperature",), **common, **changes}
        return EndpointEngine(AnthropicEngineConfig.model_validate(found), deadline_s=5.0)
    fields = ("temperature", "top_p")
    found = {"kind": "openai", "sampling_fields": fields, "limit_field": "max_tokens", **common}
    return EndpointEngine(OpenaiEngineConfig.model_validate({**found, **changes}), deadline_s=5.0)


async def ask(
    engine: EndpointEngine,
    messages: list[dict[str, Any]] | None = None,
    tools: list[dict[str, Any]] | None = None,
    **params: Any,
) -> Generation:
    prompt = Conversation(messages or [{"role": "user", "content": "hi"}], tools or [])
    asked = SamplingParams(**{"max_new_tokens": 100, **params}, conversation=prompt)
    return await engine.generate([], asked, rid="s:main:1")


@pytest.fixture(params=[OpenaiServer, AnthropicServer])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[EndpointServer]:
    async with request.param() as server:
        yield server


@pytest.fixture
async def engine(server: EndpointServer) -> AsyncIterator[EndpointEngine]:
    engine = make_engine(server)
    yield engine
    await engine.close()


def called(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "id": call_id,
        "function": {"name": "shell", "arguments": arguments},
    }


HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": "fix it"},
    {"role": "assistant", "content": "", "reasoning_content": "I think."},
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Let me see.",
        "tool_calls": [called("a:b", command="ls"), called("call_2", command="pwd")],
    },
    {"role": "user", "content": "  "},
    {"role": "tool", "tool_call_id": "a:b", "content": "x.py"},
    {"role": "tool", "tool_call_id": "call_2", "content": "/w"},
    {"role": "user", "content": "go on"},
    {"role": "system", "content": "Be brief."},
]


async def test_openai_gets_the_conversation_and_the_runs_sampling() -> None:
    async with OpenaiServer() as server:
        engine = make_engine(server, sampling_fields=("temperature", "top_p", "seed"))
        await ask(
            engine, HISTORY, [SHELL], temperature=0.5, top_p=0.9, sampling_seed=3, stop=("END",)
        )
        await engine.close()
    [sent] = server.requests
    messages = sent.pop("messages")
    assert sent == {
        "model": MODEL, "max_tokens": 100, "stream": False, "temperature": 0.5, "top_p": 0.9,
        "seed": 3, "stop": ["END"], "tools": [SHELL],
    }  # fmt: skip
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant", "tool", "tool", "user", "user", "system")
    ]
    first, second = messages[2]["tool_calls"]
    assert messages[2]["content"] == "I look."
    assert first["function"] == {"name": "shell", "arguments": '{"command":"ls"}'}
    assert messages[3] == {"role": "tool", "tool_call_id": first["id"], "content": "x.py"}
    assert first["id"].startswith("call_")
    assert second["id"] == "call_2"
    assert "Let me see" not in str(messages)


async def test_anthropic_gets_the_conversation_and_the_runs_sampling() -> None:
    async with AnthropicServer() as server:
        engine = make_engine(server, sampling_fields=("temperature", "top_k"))
        await ask(engine, HISTORY, [SHELL], temperature=0.5, top_k=9, stop=("END",))
        await engine.close()
    [sent] = server.requests
    messages = sent.pop("messages")
    mark = {"cache_control": {"type": "ephemeral"}}
    schema = SHELL["function"]["parameters"]  # type: ignore[index]
    assert sent == {
        "model": MODEL, "max_tokens": 100, "stream": False, "temperature": 0.5, "top_k": 9,
        "stop_sequences": ["END"], "system": [{"type": "text", "text": "You fix bugs.", **mark}],
        "tools": [{"name": "shell", "description": "Run a command.", "input_schema": schema}],
    }  # fmt: skip
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    said, call, _ = messages[1]["content"]
    assert said == {"type": "text", "text": "I look."}
    assert call["input"] == {"command": "ls"}
    assert messages[2]["content"] == [
        {"type": "tool_result", "tool_use_id": call["id"], "content": "x.py"},
        {"type": "tool_result", "tool_use_id": "call_2", "content": "/w"},
        {"type": "text", "text": "go on"},
        {"type": "text", "text": "<system>\nBe brief.\n</system>", **mark},
    ]


async def test_what_the_run_does_not_name_is_not_sent(
    server: EndpointServer, engine: EndpointEngine
) -> None:
    await ask(engine, temperature=1.0, top_k=5, sampling_seed=1)
    assert {"top_k", "seed", "tools", "stop", "stop_sequences"}.isdisjoint(server.requests[0])


async def test_a_reasoning_model_of_openai_gets_what_it_takes() -> None:
    async with OpenaiServer() as server:
        server.reasons = True
        engine = make_engine(server, limit_field="max_completion_tokens", sampling_fields=())
        await ask(engine)
        await engine.close()
    assert server.requests[0]["max_completion_tokens"] == 100


async def test_an_answer_has_text_calls_and_the_endpoints_count(
    server: EndpointServer, engine: EndpointEngine
) -> None:
    answer = TextAnswer(
        "I look.",
        (Call("shell", {"command": "ls"}),),
        prompt_tokens=50,
        completion_tokens=9,
        cached_tokens=30,
    )
    server.say(answer, TextAnswer(delay_s=0.05))
    found = await ask(engine, tools=[SHELL])
    assert found.reply is not None
    assert found.reply.text == "I look."
    [call] = found.reply.calls
    assert (call.name, call.arguments) == ("shell", {"command": "ls"})
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (50, 9, 30)
    assert (found.finish_reason, found.matched, found.weight_version) == ("stop", None, -1)
    assert len(found.output_ids) == len(found.logprobs) == 0
    assert (await ask(engine)).engine_s >= 0.05


@pytest.mark.parametrize(
    ("vendor", "finish", "expected"),
    [
        (OpenaiServer, "length", "length"),
        (OpenaiServer, "content_filter", "refusal"),
        (AnthropicServer, "max_tokens", "length"),
        (AnthropicServer, "model_context_window_exceeded", "length"),
        (AnthropicServer, "refusal", "refusal"),
    ],
)
async def test_ends_are_told_apart(
    vendor: type[EndpointServer], finish: str, expected: str
) -> None:
    async with vendor() as server:
        engine = make_engine(server)
        server.say(TextAnswer(finish=finish))
        assert (await ask(engine)).finish_reason == expected
        await engine.close()


async def test_stop_strings_are_told() -> None:
    async with AnthropicServer() as anthropic, OpenaiServer("vllm") as vllm:
        for server in (anthropic, vllm):
            engine = make_engine(server)
            server.say(TextAnswer("up to", stop="END"))
            assert (await ask(engine, stop=("END",))).matched == "END"
            await engine.close()


async def test_reasoning_and_broken_arguments_of_open_servers_are_read() -> None:
    for dialect in ("llama.cpp", "vllm"):
        async with OpenaiServer(dialect) as server:
            engine = make_engine(server)
            server.say(TextAnswer("", (Call("shell", '{"command": '),), reasoning="Hm."))
            reply = (await ask(engine, tools=[SHELL])).reply
            await engine.close()
        assert reply is not None
        assert reply.reasoning == "Hm."
        assert reply.calls == (TextCall("shell", None, 'shell({"command": )'),)


async def test_a_key_is_sent_in_the_apis_own_header(
    server: EndpointServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.api_key = KEY
    monkeypatch.setenv(ENGINE_KEY, f" {KEY}\n")  # as `$(cat key)` and files leave it
    engine = make_engine(server, url=f"{server.url}/v1")
    await ask(engine)
    await engine.close()
    name, other = "authorization", "x-api-key"
    if isinstance(server, AnthropicServer):
        name, other = other, name
    assert server.headers[-1][name].endswith(KEY)
    assert other not in server.headers[-1]


async def test_no_error_repeats_the_key(
    server: EndpointServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.api_key = "another"
    monkeypatch.setenv(ENGINE_KEY, KEY)
    engine = make_engine(server)
    with pytest.raises(EngineError, match=f"Set {ENGINE_KEY}") as refused:
        await ask(engine)
    server.api_key = None
    escaped = KEY.replace("/", "\\/")
    for answer in (
        TextAnswer(status=500, message=f"the key {KEY}"),
        TextAnswer(status=400, body={"detail": {"headers": {"x-api-key": KEY}}}),
        TextAnswer(status=400, body=[escaped, KEY]),
        TextAnswer(body={"choices": f"Bearer {KEY}", "content": KEY}),
        TextAnswer(body={"error": {"message": f"no such key: {KEY}", "code": 401}}),
    ):
        server.say(answer)
        with pytest.raises(EngineError) as failed:
            await ask(engine)
        assert KEY not in str(failed.value)
        assert escaped not in str(failed.value)
    assert KEY not in str(refused.value)
    await engine.close()


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel", "nul\x01"])
async def test_more_than_a_key_is_refused_without_it(
    server: EndpointServer, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv(ENGINE_KEY, key)
    engine = make_engine(server)
    with pytest.raises(EngineError, match="set it to the key alone") as refused:
        await ask(engine)
    assert key not in str(refused.value)
    assert server.headers == []
    await engine.close()


async def test_no_redirect_is_followed(
    server: EndpointServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENGINE_KEY, KEY)
    for status in (301, 302, 307, 308):
        async with type(server)() as thief:
            to = {"Location": f"{thief.url}{thief.path}"}
            server.say(TextAnswer(status=status, headers=to))
            engine = make_engine(server)
            with pytest.raises(EngineError, match=r"redirect, which is not followed") as refused:
                await ask(engine)
            assert not refused.value.retryable
            assert thief.headers == []
            await engine.close()


@pytest.mark.parametrize(("status", "pushed_back"), [(429, True), (529, True), (502, False)])
async def test_overload_is_retryable_and_says_how_long_to_wait(
    server: EndpointServer, engine: EndpointEngine, status: int, pushed_back: bool
) -> None:
    server.say(TextAnswer(status=status, headers={"Retry-After": "7"}))
    with pytest.raises(EngineError, match="scripted fault") as failed:
        await ask(engine)
    assert (failed.value.retryable, failed.value.pushed_back) == (True, pushed_back)
    assert failed.value.retry_after_s == 7


async def test_a_cut_connection_and_a_late_answer_are_retryable(server: EndpointServer) -> None:
    server.say(TextAnswer(cut=True), TextAnswer(delay_s=3600))
    engine = make_engine(server)
    with pytest.raises(EngineError) as failed:
        await ask(engine)
    assert failed.value.retryable
    engine._deadline_s = 0.1
    with pytest.raises(EngineError, match=r"no answer within 0\.1 s") as failed:
        await ask(engine)
    assert failed.value.retryable
    async with asyncio.timeout(5):
        while not server.disconnected:
            await asyncio.sleep(0.01)
    await engine.close()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": [], "content": 3, "usage": {}},
        {"choices": [{"message": None}], "content": [1]},
        {"choices": [{"message": {}, "finish_reason": "odd"}], "content": [], "stop_reason": "odd"},
        [],
    ],
)
async def test_an_answer_of_another_shape_is_an_error(
    server: EndpointServer, engine: EndpointEngine, body: Any
) -> None:
    server.say(TextAnswer(body=body))
    with pytest.raises(EngineError, match="unreadable answer") as failed:
        await ask(engine)
    assert not failed.value.retryable


async def test_an_error_with_status_200_keeps_its_own_status(
    server: EndpointServer, engine: EndpointEngine
) -> None:
    error = {"message": "the provider is overloaded", "code": 429}
    server.say(TextAnswer(body={"error": error}), TextAnswer(body={"error": "odd"}))
    with pytest.raises(EngineError, match="overloaded") as failed:
        await ask(engine)
    assert failed.value.pushed_back
    with pytest.raises(EngineError) as failed:
        await ask(engine)
    assert failed.value.status == 502


@pytest.mark.parametrize(
    ("vendor", "message"),
    [
        (OpenaiServer(), None),
        (OpenaiServer("llama.cpp"), None),
        (OpenaiServer("vllm"), None),
        (AnthropicServer(), None),
        (OpenaiServer(), "Your input exceeds the context window of this model."),
        (OpenaiServer(), "The input token count (9) exceeds the maximum number of tokens allowed"),
        (OpenaiServer(), "The input (9 tokens) is longer than the model's context length (8)."),
    ],
)
async def test_every_way_to_say_that_a_prompt_is_too_long_is_known(
    vendor: EndpointServer, message: str | None
) -> None:
    async with vendor as server:
        server.context = 10
        engine = make_engine(server)
        server.say(TextAnswer(prompt_tokens=20))
        if message is not None:
            server.script[0] = TextAnswer(status=400, message=message)
        with pytest.raises(EngineError) as failed:
            await ask(engine)
        assert failed.value.too_long
        assert not failed.value.retryable
        server.say(TextAnswer(status=400, message="max_tokens is too large: 100"))
        with pytest.raises(EngineError) as failed:
            await ask(engine)
        assert not failed.value.too_long
        server.say(TextAnswer(status=413))
        with pytest.raises(EngineError) as failed:
            await ask(engine)
        assert failed.value.too_long
        await engine.close()


TOO_MUCH = (
    "This model's maximum context length is 200 tokens. However, you requested 250 tokens (150 in "
    "the messages, 100 in the completion).",
    "'max_tokens' is too large: 100. This model's maximum context length is 200 tokens and your "
    "request has 150 input tokens (100 > 200 - 150).",
    "You passed 150 input tokens and requested 100 output tokens. However, the model's context "
    "length is only 200 tokens, resulting in a maximum input length of 100 tokens.",
    "input length and `max_tokens` exceed context limit: 150 + 100 > 200, decrease input length",
)


@pytest.mark.parametrize("message", TOO_MUCH)
async def test_the_answer_gets_what_the_prompt_leaves(
    server: EndpointServer, engine: EndpointEngine, message: str
) -> None:
    assert find_room(message) == 50
    server.say(TextAnswer(status=400, message=message), "short")
    found = await ask(engine)
    assert found.reply is not None
    assert found.reply.text == "short"
    assert [request["max_tokens"] for request in server.requests] == [100, 50]


async def test_a_full_context_is_not_asked_again(
    server: EndpointServer, engine: EndpointEngine
) -> None:
    full = TOO_MUCH[3].replace("150", "300")
    server.say(TextAnswer(status=400, message=full))
    with pytest.raises(EngineError):
        await ask(engine)
    server.say(TextAnswer(status=400, message=TOO_MUCH[3].replace("150", "20")))
    with pytest.raises(EngineError):
        await ask(engine)
    assert len(server.requests) == 2
