"""Anthropic Messages: requests accepted, refused and converted."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from runners.gateway.conversation import Answer, IssuedCall, TurnRequest
from runners.gateway.dialects import anthropic, anthropic_reply
from runners.gateway.dialects.body import parse_body
from runners.gateway.refusal import RefusalKind, Refused
from tests.fakes.running_gateway import TOOLS, user

BASE: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": [user("hi")]}


def parse(**changes: Any) -> TurnRequest:
    body = {key: value for key, value in {**BASE, **changes}.items() if value is not ...}
    return anthropic.TURN.parse_request(orjson.dumps(body), {}).request


def refusal_text(**changes: Any) -> str:
    with pytest.raises(Refused) as caught:
        parse(**changes)
    assert caught.value.kind is RefusalKind.INVALID
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": 7}, "model: "),
        ({"max_tokens": "10"}, "max_tokens: "),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"max_tokens": ...}, "max_tokens: Field required"),
        ({"messages": []}, "messages: "),
        ({"messages": "hi"}, "messages: "),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages.0.role: "),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content: "),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages.0.content.0"),
        ({"messages": [user("")]}, "messages: all of it is empty"),
        ({"messages": [user("a"), {"role": "assistant", "content": "b"}]}, "prefilled"),
        ({"stream": "yes"}, "stream: "),
        ({"temperature": "hot"}, "temperature: "),
        ({"stop_sequences": [""]}, "stop_sequences.0: "),
        ({"tools": [{"name": ""}]}, "tools.0.name: "),
        ({"tools": [{"name": "x", "input_schema": []}]}, "tools.0.input_schema: "),
        ({"thread": {"type": "create"}}, "thread: nothing is kept here for clients"),
        ({"n": 2}, "n: one answer is sampled per request"),
    ],
)
def test_a_malformed_request_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    assert named in refusal_text(**changes)


def test_all_faults_are_named_at_once() -> None:
    assert {"model: ", "max_tokens: ", "stream: "} <= set(
        part.split(": ")[0] + ": "
        for part in refusal_text(model=1, max_tokens=-1, stream=2).split("; ")
    )


def test_invalid_json_is_refused() -> None:
    with pytest.raises(Refused, match="Invalid JSON"):
        parse_body(anthropic.MessagesRequest, b'{"model": ')


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("user", {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}),
        ("assistant", {"type": "tool_result", "tool_use_id": "t"}),
    ],
)
def test_a_block_in_the_wrong_role_is_refused(role: str, block: dict[str, Any]) -> None:
    message = {"role": role, "content": [block]}
    assert f"cannot stand in a {role} message" in refusal_text(messages=[message, user("x")])


def test_every_field_that_claude_code_sends_is_accepted() -> None:
    request = parse(
        metadata={"user_id": "{}"},
        thinking={"type": "adaptive", "display": "updates"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
        tool_choice={"type": "auto"},
        service_tier="auto",
        messages=[{"role": "user", "content": "hi", "output_config": {"effort": "low"}}],
    )
    assert request.show_thinking
    assert request.ignored == ()


@pytest.mark.parametrize(
    ("changes", "is_title"),
    [
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, True),
        ({"output_format": {"type": "json_schema", "schema": {}}}, True),
        ({"output_config": {"effort": "high"}}, False),
        ({"output_config": {"format": None}}, False),
        ({"output_format": {"type": "text"}}, False),
    ],
)
def test_json_without_tools_is_a_title_of_claude_code_and_of_no_other_program(
    changes: dict[str, Any], is_title: bool
) -> None:
    headers = {"x-claude-code-session-id": "s"}

    def request_class(headers: dict[str, str], **more: Any) -> str | None:
        parsed = anthropic.TURN.parse_request(orjson.dumps({**BASE, **changes, **more}), headers)
        return parsed.request.attribution.request_class

    assert request_class(headers) == ("side" if is_title else None)
    assert request_class({}) == request_class(headers, tools=TOOLS) is None
    assert parse(**changes).ignored == (("output_config.format",) if is_title else ())


def test_a_refused_thread_is_reported_in_the_words_on_which_its_client_does_without() -> None:
    with pytest.raises(Refused) as caught:
        parse(thread={"type": "create"})
    status, body = anthropic.error_response(caught.value)
    assert status == 400
    assert body["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_sampling_that_a_client_asks_for_is_reported_as_ignored() -> None:
    request = parse(temperature=0, top_p=0.5, top_k=3, tool_choice={"type": "any"})
    assert request.ignored == ("temperature", "top_p", "top_k", "tool_choice")


def test_a_conversation_is_translated_for_the_renderer() -> None:
    messages, tools = anthropic.to_renderer_messages(
        {
            "model": "m",
            "max_tokens": 10,
            "stream": True,
            "tools": [*TOOLS, {"type": "web_search_20250305", "name": "web_search"}],
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1;"},
                {"type": "text", "text": "You fix bugs.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be brief."},
            ],
            "messages": [
                user("the task"),
                {"role": "system", "content": "a reminder"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "x"},
                        {"type": "redacted_thinking", "data": "x"},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "x"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "is_error": True,
                            "content": [
                                {"type": "text", "text": "no such file"},
                                {"type": "image", "source": {"media_type": "image/png"}},
                                {"type": "tool_reference", "tool_name": "Grep"},
                            ],
                        },
                        {"type": "text", "text": "note one"},
                        {"type": "text", "text": ""},
                        {
                            "type": "document",
                            "source": {"type": "text", "data": "note two"},
                        },
                        {"type": "image", "source": {"type": "base64", "data": "SECRET"}},
                    ],
                },
            ],
        }
    )
    assert tools == [
        {
            "type": "function",
            "function": {
                "name": "Bash",
                "description": "Run a command.",
                "parameters": TOOLS[0]["input_schema"],
            },
        }
    ]
    call = {"name": "Bash", "arguments": {"command": "x"}}
    omitted = "omitted: this model reads text only]"
    assert messages == [
        {"role": "system", "content": "You fix bugs.\nBe brief."},
        {"role": "user", "content": "the task"},
        {"role": "system", "content": "a reminder"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [{"type": "function", "id": "t1", "function": call}],
        },
        {
            "role": "tool",
            "tool_call_id": "t1",
            "content": f"Error: no such file\n[image image/png {omitted}\n[tool Grep is available]",
        },
        {"role": "user", "content": f"note one\nnote two\n[image {omitted}"},
    ]


@pytest.mark.parametrize(
    ("shown", "kinds"), [(True, ["thinking", "text", "tool_use"]), (False, ["text", "tool_use"])]
)
def test_thoughts_are_answered_only_if_the_client_asked_for_them(
    shown: bool, kinds: list[str]
) -> None:
    request = parse(thinking={"type": "enabled" if shown else "disabled"})
    calls = (IssuedCall("toolu_1", "Bash", {"command": "ls"}),)
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "cached_tokens": 10}
    answer = Answer("hm", "I look.", calls, 0, "tool_use", None, usage)
    message = anthropic_reply.build_response(answer, request, "msg_1")
    assert [block["type"] for block in message["content"]] == kinds
    assert message["usage"] == {
        "input_tokens": 1,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 9,
        "output_tokens": 3,
    }, "what the cache held counts apart, and the sum is the prompt"


def test_an_empty_answer_is_one_empty_text_block() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
    answer = Answer("", "", (), 0, "end_turn", None, usage)
    message = anthropic_reply.build_response(answer, parse(), "msg_1")
    assert message["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (
            {"source": {"type": "text", "data": "body"}, "title": "Notes", "context": "of May"},
            "Notes\nof May\nbody",
        ),
        ({"source": {"type": "content", "content": "body"}, "title": None}, "body"),
        (
            {"source": {"type": "content", "content": [{"text": "a"}, {"type": "image"}]}},
            "a\n[image omitted: this model reads text only]",
        ),
        (
            {"source": {"type": "url", "url": "x"}, "title": "Notes"},
            "Notes\n[document omitted: this model reads text only]",
        ),
    ],
)
def test_a_document_is_shown_with_what_is_said_of_it(block: dict[str, Any], shown: str) -> None:
    document = {"type": "document", **block}
    (piece,) = parse(messages=[{"role": "user", "content": [document]}]).pieces
    assert piece.text == shown


def test_what_a_server_was_asked_for_is_shown() -> None:
    used = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "é"}}
    said = {"role": "assistant", "content": [used]}
    piece = parse(messages=[user("Look."), said, user("So?")]).pieces[1]
    assert (piece.text, piece.note) == ('[server_tool_use]\n{"query": "é"}', "server_tool_use")
