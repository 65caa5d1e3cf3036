"""Responses: requests accepted, refused and converted."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from runners.gateway.conversation import (
    SYSTEM_PROMPT,
    Answer,
    IssuedCall,
    TurnRequest,
    group_messages,
)
from runners.gateway.dialects import openai_responses
from runners.gateway.dialects.contract import ParsedRequest
from runners.gateway.refusal import RefusalKind, Refused

PARAMETERS = {"type": "object", "properties": {"cmd": {"type": "string"}}}
RUN = {"type": "function", "name": "run", "strict": False, "parameters": PARAMETERS}
BASE: dict[str, Any] = {"model": "m", "input": "hi"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "cached_tokens": 4}


def parse(**changes: Any) -> ParsedRequest:
    body = {key: value for key, value in {**BASE, **changes}.items() if value is not ...}
    return openai_responses.TURN.parse_request(orjson.dumps(body), {})


def parse_turn(**changes: Any) -> TurnRequest:
    return parse(**changes).request


def refusal_text(**changes: Any) -> str:
    with pytest.raises(Refused) as caught:
        parse_turn(**changes)
    assert caught.value.kind is RefusalKind.INVALID
    return str(caught.value)


def message(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text} for text in texts]
    return {"type": "message", "role": role, "id": "msg_1", "content": content}


def function_call(arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "run",
        "arguments": arguments,
        **more,
    }


def output(value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "call_1", "output": value, **more}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": 7}, "model: "),
        ({"input": ...}, "input: Field required"),
        ({"input": []}, "input: "),
        ({"input": ""}, "input: all of it is empty"),
        ({"input": 7}, "input: "),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.message.role: "),
        ({"input": [{"type": "robot", "id": "msg_1"}]}, "'robot' found"),
        ({"input": [message("user", "a"), message("assistant", "b")]}, "prefilled"),
        ({"input": [message("user", "a"), function_call()]}, "prefilled"),
        ({"input": [function_call(arguments=7), output("x")]}, "input.0.function_call.arguments: "),  # type: ignore[arg-type]
        ({"input": [output(7)]}, "input.0.function_call_output.output: "),
        ({"previous_response_id": "resp_1"}, "previous_response_id: nothing is kept here"),
        ({"conversation": {"id": "conv_1"}}, "send the whole conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "no prompt templates are kept here"),
        ({"background": True}, "background: Input should be False"),
        ({"max_output_tokens": 0}, "max_output_tokens: "),
        ({"tools": [{"type": "function"}]}, "tools.0.function.name: Field required"),
        ({"tools": [RUN, RUN]}, "tools: two tools are named 'run'"),
    ],
)
def test_a_malformed_request_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    assert named in refusal_text(**changes)


def test_a_conversation_is_translated_for_the_renderer() -> None:
    request = parse_turn(
        instructions="You are a coding agent.",
        input=[
            message("developer", "Be brief.", "Ask nobody."),
            message("user", "where"),
            message("user", "the task"),
            message("developer", "a reminder"),
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "not this"}],
                "content": [{"type": "reasoning_text", "text": "hm"}],
                "encrypted_content": "x",
            },
            message("assistant", "I look."),
            function_call('{"cmd": "ls"}'),
            function_call('{"cmd": ', call_id="call_2"),
            output("a.py"),
            output(
                [{"type": "input_text", "text": "b"}, {"type": "input_image", "image_url": "S"}],
                call_id="call_2",
            ),
        ],
    )
    assert [piece.message for piece in request.pieces[:2]] == [SYSTEM_PROMPT, 1]

    def shown_call(call_id: str, arguments: dict[str, str]) -> dict[str, Any]:
        function = {"name": "run", "arguments": arguments}
        return {"type": "function", "id": call_id, "function": function}

    assert group_messages(request.pieces) == [
        {"role": "system", "content": "You are a coding agent.\nBe brief.\nAsk nobody."},
        {"role": "user", "content": "where"},
        {"role": "user", "content": "the task"},
        {"role": "system", "content": "a reminder"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                shown_call("call_1", {"cmd": "ls"}),
                shown_call("call_2", {"arguments": '{"cmd": '}),
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "a.py"},
        {
            "role": "tool",
            "tool_call_id": "call_2",
            "content": "b\n[image omitted: this model reads text only]",
        },
    ]


def test_an_item_may_go_without_the_type_of_a_message() -> None:
    short = {"role": "user", "content": "hi"}
    assert parse_turn(input=[short]).digest_pieces() == parse_turn().digest_pieces()


@pytest.mark.parametrize(
    "given",
    [
        {"content": None, "summary": [{"type": "summary_text", "text": "hm"}]},
        {"content": [{"type": "reasoning_text", "text": "hm"}]},
    ],
)
def test_thoughts_come_back_as_content_or_as_summary(given: dict[str, Any]) -> None:
    thought = {"type": "reasoning", "id": "rs_1", **given}
    request = parse_turn(input=[message("user", "a"), thought, function_call(), output("b")])
    assert [(piece.kind, piece.text) for piece in request.pieces[1:2]] == [("thinking", "hm")]


def test_encrypted_thoughts_are_left_out() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    request = parse_turn(input=[message("user", "a"), thought, function_call(), output("b")])
    assert [piece.kind for piece in request.pieces] == ["text", "tool_call", "tool_result"]


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        ({"format": {"type": "json_schema", "name": "n", "schema": {}}}, ("text.format",)),
        ({"format": {"type": "json_object"}}, ("text.format",)),
        ({"format": {"type": "text"}}, ()),
        ({"verbosity": "low"}, ()),
    ],
)
def test_a_format_of_the_answer_is_reported_as_ignored(
    text: dict[str, Any], ignored: tuple[str, ...]
) -> None:
    assert parse_turn(text=text).ignored == ignored


def test_every_field_that_codex_sends_is_accepted_and_hosted_tools_are_counted() -> None:
    request = parse_turn(
        stream=True,
        tools=[RUN, {"type": "web_search", "external_web_access": True}],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="x",
        client_metadata={"x-codex-turn-metadata": "{"},
    )
    assert request.show_thinking
    assert request.ignored == ("tools.web_search",)
    assert [tool["function"]["name"] for tool in request.tools] == ["run"]


def test_sampling_that_a_client_asks_for_is_reported_as_ignored() -> None:
    request = parse_turn(temperature=0, top_p=0.5, tool_choice={"type": "function", "name": "run"})
    assert request.ignored == ("temperature", "top_p", "tool_choice")


@pytest.mark.parametrize(
    ("reasoning", "kinds"),
    [
        ({"effort": "high"}, ["reasoning", "message", "function_call", "function_call"]),
        ({"effort": "none"}, ["message", "function_call", "function_call"]),
        (None, ["message", "function_call", "function_call"]),
    ],
)
def test_thoughts_are_answered_only_if_the_client_asked_for_them(
    reasoning: Any, kinds: list[str]
) -> None:
    wanted = parse(reasoning=reasoning, tools=[RUN])
    calls = (IssuedCall("call_1", "run", {"cmd": "ls"}), IssuedCall("call_2", "run", {"cmd": "é"}))
    answer = Answer("hm", "I look.", calls, 0, "tool_use", None, USAGE)
    body = wanted.builder.build_response(answer, wanted.request, wanted.builder.new_message_id())
    assert [item["type"] for item in body["output"]] == kinds
    assert [item["arguments"] for item in body["output"][-2:]] == ['{"cmd": "ls"}', '{"cmd": "é"}']
    assert body["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 13,
    }


def test_an_empty_answer_is_one_empty_message() -> None:
    wanted = parse()
    answer = Answer("", "", (), 0, "end_turn", None, USAGE)
    body = wanted.builder.build_response(answer, wanted.request, wanted.builder.new_message_id())
    (item,) = body["output"]
    assert item["content"] == [{"type": "output_text", "text": "", "annotations": []}]


def test_an_answer_that_hit_the_limit_is_incomplete() -> None:
    wanted = parse()
    answer = Answer("", "half", (), 0, "max_tokens", None, USAGE)
    body = wanted.builder.build_response(answer, wanted.request, wanted.builder.new_message_id())
    assert (body["status"], body["output"][0]["status"]) == ("incomplete", "incomplete")
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_reference_to_a_thought_is_a_thought_and_arguments_may_be_an_object() -> None:
    thought = {"type": "item_reference", "id": "rs_1"}
    call: dict[str, Any] = {**function_call(), "arguments": {"cmd": "ls"}}
    request = parse_turn(input=[message("user", "a"), thought, call, output("x")])
    assert [piece.kind for piece in request.pieces] == ["text", "tool_call", "tool_result"]
    assert request.pieces[1].arguments == {"cmd": "ls"}


@pytest.mark.parametrize("kind", [{}, {"type": "item_reference"}, {"type": None}])
@pytest.mark.parametrize("name", ["msg_1", "fc_1"])
def test_a_reference_to_an_item_is_refused_since_the_policy_would_not_see_it(
    name: str, kind: dict[str, Any]
) -> None:
    with pytest.raises(Refused, match=r"input\.1: an item that is only named by its id") as caught:
        parse_turn(input=[message("user", "a"), {**kind, "id": name}, message("user", "b")])
    assert "store: false" in str(caught.value)


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [
        ({"type": "exit", "exit_code": 0}, "out"),
        ({"type": "exit", "exit_code": 3}, 'out\n{"type": "exit", "exit_code": 3}'),
        ({"type": "timeout"}, 'out\n{"type": "timeout"}'),
    ],
)
def test_a_command_that_failed_says_so(outcome: dict[str, Any], shown: str) -> None:
    ran = {"type": "shell_call", "call_id": "c", "action": {"commands": ["x"]}}
    parts = [{"stdout": "out", "stderr": "", "outcome": outcome}]
    answered = {"type": "shell_call_output", "call_id": "c", "output": parts}
    request = parse_turn(input=[message("user", "a"), ran, answered])
    assert request.pieces[-1].text == shown
