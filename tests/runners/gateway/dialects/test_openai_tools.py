"""Tools of the Responses API: as functions for the policy, and calls converted back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from runners.gateway.conversation import Answer, IssuedCall
from runners.gateway.dialects import openai_responses
from runners.gateway.dialects.contract import ParsedRequest

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}},
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Patch files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: hunk+"},
    },
    {"type": "local_shell"},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Sub-agents.",
        "tools": [
            {"type": "function", "name": "spawn"},
            {"type": "custom", "name": "tell"},
        ],
    },
    {"type": "web_search"},
]
CALLS = (
    IssuedCall("call_1", "run", {"cmd": "ls"}),
    IssuedCall("call_2", "apply_patch", {"input": "*** Begin\n"}),
    IssuedCall("call_3", "local_shell", {"command": "ls | wc"}),
    IssuedCall("call_4", "agents__spawn", {"task": "look"}),
    IssuedCall("call_5", "agents__tell", {"input": "stop"}),
)


def parse(*items: dict[str, Any]) -> ParsedRequest:
    body = {"model": "m", "tools": TOOLS, "input": [{"role": "user", "content": "hi"}, *items]}
    return openai_responses.TURN.parse_request(orjson.dumps(body), {})


def build_output(*calls: IssuedCall) -> list[dict[str, Any]]:
    wanted = parse()
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
    answer = Answer("", "", calls, 0, "tool_use", None, usage)
    body = wanted.builder.build_response(answer, wanted.request, wanted.builder.new_message_id())
    output: list[dict[str, Any]] = body["output"]
    return output


def test_every_tool_that_a_client_runs_is_a_function_to_the_policy() -> None:
    functions = [tool["function"] for tool in parse().request.tools]
    assert [function["name"] for function in functions] == [
        *("run", "apply_patch", "local_shell", "agents__spawn", "agents__tell")
    ]
    assert functions[1] == {
        "name": "apply_patch",
        "description": "Patch files.",
        "parameters": {
            "type": "object",
            "properties": {
                "input": {"type": "string", "description": "Text of this grammar:\nstart: hunk+"}
            },
            "required": ["input"],
        },
    }
    assert parse().request.ignored == ("tools.web_search",)


def test_calls_are_answered_in_the_kinds_of_the_clients_tools() -> None:
    run, patch, shell, spawn, tell = build_output(*CALLS)
    assert (run["type"], run["name"], run["arguments"]) == ("function_call", "run", '{"cmd": "ls"}')
    assert (patch["type"], patch["name"]) == ("custom_tool_call", "apply_patch")
    assert patch["input"] == "*** Begin\n"
    assert shell["type"] == "local_shell_call"
    assert shell["action"] == {"type": "exec", "command": ["bash", "-lc", "ls | wc"], "env": {}}
    assert (spawn["name"], spawn["namespace"]) == ("spawn", "agents")
    assert (tell["name"], tell["namespace"], tell["input"]) == ("tell", "agents", "stop")
    assert "namespace" not in run
    items = (run, patch, shell, spawn, tell)
    assert [item["call_id"] for item in items] == [call.id for call in CALLS]
    assert len({item["id"] for item in items}) == len(CALLS)


def test_calls_that_come_back_are_those_of_the_policy() -> None:
    outputs = [
        {"type": f"{kind}_output", "call_id": call.id, "output": "done"}
        for call, kind in zip(
            CALLS,
            (
                *("function_call", "custom_tool_call", "local_shell_call"),
                *("function_call", "custom_tool_call"),
            ),
            strict=True,
        )
    ]
    request = parse(*build_output(*CALLS), *outputs).request
    came = [piece for piece in request.pieces if piece.kind == "tool_call"]
    assert [IssuedCall(piece.tool_id, piece.name, piece.arguments) for piece in came] == list(CALLS)
    assert {piece.message for piece in came} == {1}, "they are one turn"
    results = [piece.tool_id for piece in request.pieces if piece.kind == "tool_result"]
    assert results == [call.id for call in CALLS]


@pytest.mark.parametrize(
    ("call", "field", "text"),
    [
        (IssuedCall("call_1", "apply_patch", {"patch": "x"}), "input", '{"patch": "x"}'),
        (IssuedCall("call_1", "apply_patch", {"input": 7}), "input", '{"input": 7}'),
    ],
)
def test_a_freeform_call_without_its_string_is_sent_as_it_is(
    call: IssuedCall, field: str, text: str
) -> None:
    (item,) = build_output(call)
    assert item[field] == text


def test_a_call_of_an_unknown_tool_is_left_to_the_client_to_refuse() -> None:
    (item,) = build_output(IssuedCall("call_1", "nothing", {}))
    assert (item["type"], item["name"]) == ("function_call", "nothing")


def test_a_shell_command_of_another_client_is_quoted() -> None:
    call = {"type": "local_shell_call", "call_id": "call_1", "action": {"command": ["echo", "a b"]}}
    output = {"type": "local_shell_call_output", "call_id": "call_1", "output": "a b"}
    _, said, _ = parse(call, output).request.pieces
    assert said.arguments == {"command": "echo 'a b'"}
