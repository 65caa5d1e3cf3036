"""Chat Completions: requests accepted, refused and converted."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from runners.gateway.conversation import Piece, TurnRequest, group_messages
from runners.gateway.dialects import openai_chat
from runners.gateway.dialects.contract import ParsedRequest
from runners.gateway.refusal import RefusalKind, Refused
from tests.fakes.running_gateway import user

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH = {
    "type": "function",
    "function": {"name": "bash", "description": "Run.", "parameters": PARAMETERS},
}
BASE: dict[str, Any] = {"model": "m", "messages": [user("hi")]}


def parse(**changes: Any) -> ParsedRequest:
    body = {key: value for key, value in {**BASE, **changes}.items() if value is not ...}
    return openai_chat.TURN.parse_request(orjson.dumps(body), {})


def parse_turn(**changes: Any) -> TurnRequest:
    return parse(**changes).request


def parse_refused(**changes: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        parse_turn(**changes)
    assert caught.value.kind is RefusalKind.INVALID
    return caught.value


def call(arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": "bash", "arguments": arguments},
    }


def assistant(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def result(text: Any, call_id: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": ...}, "model: Field required"),
        ({"messages": []}, "messages: "),
        ({"messages": "hi"}, "messages: "),
        ({"messages": [{"role": "robot", "name": "f", "content": "x"}]}, "'robot' found"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.user.content: "),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages.0.user"),
        ({"messages": [user("")]}, "messages: all of it is empty"),
        ({"messages": [user("a"), {"role": "assistant", "content": "b"}]}, "prefilled"),
        ({"messages": [user("a"), assistant(call("{}"))]}, "prefilled"),
        ({"messages": [assistant(call(7)), result("x")]}, "function.arguments: "),  # type: ignore[arg-type]
        ({"messages": [{"role": "tool", "content": "x"}]}, "tool_call_id: Field required"),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"max_completion_tokens": "10"}, "max_completion_tokens: "),
        ({"n": 2}, "n: one answer is sampled per request"),
        ({"n": True}, "n: one answer is sampled per request"),
        ({"best_of": 4}, "best_of: one answer is sampled per request"),
        ({"use_beam_search": True}, "use_beam_search: one answer is sampled per request"),
        ({"echo": True}, "echo: a prompt is not repeated"),
        ({"continue_final_message": True}, "continue_final_message: an assistant's message is"),
        ({"previous_response_id": "r"}, "previous_response_id: nothing is kept here for clients"),
        ({"session_params": {"id": "s"}}, "session_params: nothing is kept here for clients"),
        ({"stop": [""]}, "stop."),
        ({"stream": "yes"}, "stream: "),
        ({"modalities": ["audio"]}, "modalities.0: "),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.function"),
        ({"tools": [{"name": "flat"}]}, "tools.0.other.type: Field required"),
        ({"functions": [{"name": "f"}]}, "functions: legacy functions are not served: use tools"),
        ({"function_call": "auto"}, "function_call: legacy functions are not served"),
    ],
)
def test_a_malformed_request_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    assert named in str(parse_refused(**changes))


def test_the_first_five_faults_are_named_and_the_first_is_the_parameter_at_fault() -> None:
    fault = parse_refused(model=1, stream=2, store=3, temperature="hot", stop=5, seed="x", user=7)
    assert fault.param == "model"
    assert "stream: " in str(fault)
    assert "more)" in str(fault)


def test_a_conversation_is_translated_for_the_renderer() -> None:
    request = parse_turn(
        tools=[BASH, {"type": "function", "function": {"name": "stop"}}],
        messages=[
            {"role": "system", "content": "You fix bugs."},
            {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
            user("the task"),
            {"role": "developer", "content": "a reminder"},
            assistant(
                call('{"command": "ls"}'),
                call('{"command": "pwd"}', "call_2"),
                content="I look.",
                reasoning_content="hm",
                provider_specific_fields={"refusal": None},
            ),
            result("a.py"),
            result([{"type": "text", "text": "/repo"}, {"type": "file", "file": {}}], "call_2"),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "and this:"},
                    {"type": "image_url", "image_url": {"url": "data:SECRET"}},
                    {"type": "input_audio", "input_audio": {}},
                ],
            },
        ],
    )
    no_arguments = {"type": "object", "properties": {}}
    assert request.tools == [
        BASH,
        {
            "type": "function",
            "function": {"name": "stop", "description": "", "parameters": no_arguments},
        },
    ]
    omitted = "omitted: this model reads text only]"

    def shown_call(call_id: str, command: str) -> dict[str, Any]:
        function = {"name": "bash", "arguments": {"command": command}}
        return {"type": "function", "id": call_id, "function": function}

    assert group_messages(request.pieces) == [
        {"role": "system", "content": "You fix bugs.\nBe brief."},
        {"role": "user", "content": "the task"},
        {"role": "system", "content": "a reminder"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [shown_call("call_1", "ls"), shown_call("call_2", "pwd")],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "a.py"},
        {"role": "tool", "tool_call_id": "call_2", "content": f"/repo\n[file {omitted}"},
        {"role": "user", "content": f"and this:\n[image {omitted}\n[audio {omitted}"},
    ]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ('{"a": ', {"arguments": '{"a": '}),
        ("[1]", {"arguments": "[1]"}),
        ("null", {}),
        (" ", {}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ('{"a": "\\ud83e \\ud83d\\ude00"}', {"a": "\ufffd \U0001f600"}),
        ("[" * 5000, {"arguments": "[" * 5000}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
    ],
)
def test_whatever_arguments_come_back_they_are_read(text: str, arguments: dict[str, Any]) -> None:
    request = parse_turn(messages=[user("x"), assistant(call(text)), result("y")])
    _, said, _ = request.pieces
    assert said == Piece(
        1, "assistant", "tool_call", tool_id="call_1", name="bash", arguments=arguments
    )
    assert len(request.digest_pieces()) == 3


def test_strings_and_lists_of_parts_are_the_same_pieces() -> None:
    flipped = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert parse_turn(messages=[flipped]).digest_pieces() == parse_turn().digest_pieces()


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7}, 7),
        ({"max_completion_tokens": 7, "max_tokens": 5}, 7),
        ({"max_completion_tokens": None}, 2**31 - 1),
    ],
)
def test_the_newer_limit_wins(limits: dict[str, Any], wanted: int) -> None:
    assert parse_turn(**limits).max_tokens == wanted


@pytest.mark.parametrize(("stop", "wanted"), [("a", ("a",)), (["a", "b"], ("a", "b")), (None, ())])
def test_stop_is_a_string_or_a_list(stop: Any, wanted: tuple[str, ...]) -> None:
    assert parse_turn(stop=stop).stop == wanted


@pytest.mark.parametrize(
    ("format_", "ignored"),
    [
        ({"type": "json_schema", "json_schema": {}}, ("response_format",)),
        ({"type": "json_object"}, ("response_format",)),
        ({"type": "text"}, ()),
        (None, ()),
    ],
)
def test_a_format_of_the_answer_is_reported_as_ignored(
    format_: Any, ignored: tuple[str, ...]
) -> None:
    assert parse_turn(response_format=format_).ignored == ignored


def test_sampling_that_a_client_asks_for_is_reported_as_ignored() -> None:
    request = parse_turn(
        temperature=0,
        top_p=0.5,
        seed=3,
        logprobs=True,
        tool_choice="required",
        parallel_tool_calls=False,
        tools=[BASH, {"type": "web_search"}],
    )
    assert request.ignored == (
        *("temperature", "top_p", "seed", "logprobs"),
        *("tool_choice", "parallel_tool_calls", "tools.web_search"),
    )
    assert request.tools == [BASH]


def test_every_field_that_clients_send_is_accepted() -> None:
    request = parse_turn(
        store=False,
        user="me",
        metadata={},
        logprobs=False,
        reasoning_effort="high",
        tool_choice="auto",
        parallel_tool_calls=True,
        stream_options={"include_usage": True},
        n=1,
        best_of=1,
        echo=False,
        use_beam_search=False,
    )
    assert (request.ignored, request.unknown_keys) == ((), 0)


@pytest.mark.parametrize(("stream", "streams"), [(True, True), (False, False), (None, False)])
def test_only_a_client_that_asks_for_a_stream_gets_one(stream: bool | None, streams: bool) -> None:
    assert parse(stream=stream).stream is streams
