"""Google's Gemini API: requests accepted, refused and converted; answers, streamed or not."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.conversation import Answer, IssuedCall, TurnRequest, group_messages
from runners.gateway.dialects import google, google_reply
from runners.gateway.refusal import RefusalKind, Refused

Block = dict[str, Any]
GEMINI_CLI = {"user-agent": "GeminiCLI-tui/0.61.0/policy (linux; x64; terminal)"}


def user(text: str) -> Block:
    return {"role": "user", "parts": [{"text": text}]}


def call(name: str, **args: Any) -> Block:
    return {"functionCall": {"name": name, "args": args}}


def result(name: str, output: object) -> Block:
    return {"functionResponse": {"name": name, "response": {"output": output}}}


BASE: Block = {"contents": [user("hi")]}


def parse(headers: dict[str, str] | None = None, **changes: Any) -> TurnRequest:
    body = orjson.dumps({**BASE, **changes})
    return google.TURN.parse_request(body, headers or {}).request


def shown(*parts: Block) -> str:
    """Return what the policy sees of a user's parts."""
    pieces = parse(contents=[{"role": "user", "parts": parts}, user("end")]).pieces
    return str(group_messages(pieces)[0]["content"])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"contents": []}, "contents: "),
        ({"contents": "hi"}, "contents: "),
        ({"contents": [{"role": "robot", "parts": []}]}, "contents.0.role: "),
        ({"contents": [{"parts": [{"text": 7}]}]}, "contents.0.parts.0.text: "),
        ({"contents": [user("")]}, "contents: all of it is empty"),
        ({"contents": [user("a"), {"role": "model", "parts": [{"text": "b"}]}]}, "prefilled"),
        ({"contents": [{"parts": [call("f")]}]}, "a functionCall cannot stand in a content of"),
        (
            {"contents": [{"role": "model", "parts": [result("f", "")]}, user("x")]},
            "contents.0: a functionResponse cannot stand in a content of role model",
        ),
        ({"contents": [{"parts": [{"functionResponse": {}}]}]}, "functionResponse.name: "),
        ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens: "),
        ({"generationConfig": {"candidateCount": 2}}, "one answer is sampled per request"),
        ({"cachedContent": "cachedContents/1"}, "cachedContent: nothing is kept here"),
        ({"tools": [{"functionDeclarations": [{"name": ""}]}]}, "functionDeclarations.0.name: "),
    ],
)
def test_a_malformed_request_is_refused_by_name(changes: Block, named: str) -> None:
    with pytest.raises(Refused) as caught:
        parse(**changes)
    assert caught.value.kind is RefusalKind.INVALID
    assert named in str(caught.value)


def test_a_conversation_is_translated_for_the_renderer() -> None:
    request = parse(
        systemInstruction={"parts": [{"text": "You fix bugs."}, {"text": "Be brief."}]},
        contents=[
            user("the task"),
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"text": "I look."},
                    {**call("read", path="a.py"), "thoughtSignature": "c2ln"},
                    {"functionCall": {"id": "c2", "name": "run", "args": {"command": "ls"}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    result("read", "def add"),
                    {"functionResponse": {"id": "c2", "name": "run", "response": {"error": "no"}}},
                    {"text": "Go on."},
                ],
            },
        ],
    )
    system, task, said, *results, last = group_messages(request.pieces)
    assert system == {"role": "system", "content": "You fix bugs.\nBe brief."}
    assert task["content"] == "the task"
    assert (said["reasoning_content"], said["content"]) == ("hm", "I look.")
    made = [(each["id"], each["function"]["name"]) for each in said["tool_calls"]]
    assert [name for _, name in made] == ["read", "run"]
    assert [(each["tool_call_id"], each["content"]) for each in results] == [
        (made[0][0], "def add"),
        ("c2", "Error: no"),
    ]
    assert last["content"] == "Go on."


def test_results_without_ids_are_those_of_the_calls_of_their_names_in_their_order() -> None:
    said = {"role": "model", "parts": [call("a", n=1), call("b"), call("a", n=2)]}
    together = [{"role": "user", "parts": [result("a", "1"), result("a", "2"), result("b", "3")]}]
    apart = [{"role": "function", "parts": [result(name, "x")]} for name in "ba"]
    for results, order in ((together, [0, 2, 1]), (apart, [1, 0])):
        pieces = parse(contents=[user("go"), said, *results, user("go")]).pieces
        calls = [piece.tool_id for piece in pieces if piece.kind == "tool_call"]
        assert len(set(calls)) == 3
        found = [piece.tool_id for piece in pieces if piece.kind == "tool_result"]
        assert found == [calls[at] for at in order]
    later = parse(contents=[user("go"), user("x"), said, *together]).pieces
    assert {piece.tool_id for piece in later}.isdisjoint(calls), "no two turns share an id"


def test_many_calls_of_one_name_keep_their_results_and_nested_parts_are_one_result() -> None:
    many = 3000
    said = {"role": "model", "parts": [call("f")] * many}
    nested: Block = {"text": "inner"}
    for _ in range(30):
        nested = {"functionResponse": {"name": "f", "response": {"output": "x"}, "parts": [nested]}}
    answers = {"parts": [*[result("f", "x")] * (many - 1), nested]}
    pieces = parse(contents=[said, answers], tools=2 * [{"functionDeclarations": [{"name": "f"}]}])
    calls = [piece.tool_id for piece in pieces.pieces if piece.kind == "tool_call"]
    assert calls == [piece.tool_id for piece in pieces.pieces if piece.kind == "tool_result"]
    assert len(set(calls)) == many


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"output": "plain"}, "plain"),
        ({"output": {"a": [1]}}, '{"a": [1]}'),
        ({"output": "o", "error": "e"}, "o\ne"),
        ({"result": "é"}, '{"result": "é"}'),
        ({"output": "o", "code": 1}, '{"output": "o", "code": 1}'),
        ({}, ""),
        (None, ""),
    ],
)
def test_a_result_is_its_output_or_else_the_whole_object(response: Any, text: str) -> None:
    answer = {"functionResponse": {"name": "f", "response": response}}
    (piece,) = parse(contents=[{"parts": [answer]}]).pieces
    assert (piece.text, piece.is_error) == (text, False)


def test_what_a_policy_cannot_be_shown_is_noted_and_counted() -> None:
    omitted = "omitted: this model reads text only]"
    image = {"inlineData": {"mimeType": "image/png", "data": "SECRET"}}
    assert shown({"text": "See:"}, image) == f"See:\n[inlineData image/png {omitted}"
    assert shown({"file_data": {"file_uri": "x"}}) == f"[fileData {omitted}"
    assert shown({"executableCode": {"code": "1+1"}}) == "[executableCode]\n1+1"
    assert shown({"codeExecutionResult": {"output": "2"}}) == "[codeExecutionResult]\n2"
    asked = {"toolCall": {"toolType": "URL_CONTEXT", "args": {"url": "x"}}}
    assert shown(asked) == '[toolCall]\n{"url": "x"}'
    assert shown({"toolResponse": {"response": {"a": 1}}}) == '[toolResponse]\n{"a": 1}'
    assert shown({"hologram": {}}) == f"[part {omitted}"
    assert shown({"text": "", "thoughtSignature": "s"}, {"text": "x"}) == "x"
    with_image = {**result("f", "see"), "thoughtSignature": "s"}
    with_image["functionResponse"]["parts"] = [image]
    (piece,) = parse(contents=[{"parts": [with_image]}]).pieces
    assert piece.text == f"see\n[inlineData image/png {omitted}"
    assert piece.note == "inlineData"


def test_names_in_snake_case_and_single_items_are_taken_as_google_takes_them() -> None:
    request = parse(
        contents={"parts": {"text": "hi"}},
        system_instruction={"text": "Be brief."},
        tools={"function_declarations": {"name": "f", "parameters_json_schema": {"a": 1}}},
        generation_config={"max_output_tokens": 5, "stop_sequences": ["x"]},
    )
    assert [piece.text for piece in request.pieces] == ["Be brief.", "hi"]
    assert request.tools[0]["function"]["parameters"] == {"a": 1}
    assert (request.max_tokens, request.stop, request.unknown_keys) == (5, ("x",), 0)


def test_googles_schemas_become_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "propertyOrdering": ["type"],
        "properties": {
            "type": {"type": "STRING", "nullable": True, "enum": ["A"], "example": "A"},
            "many": {"type": "ARRAY", "items": {"anyOf": [{"type": "INTEGER"}]}},
        },
    }
    assert google.to_json_schema(schema) == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"], "enum": ["A"]},
            "many": {"type": "array", "items": {"anyOf": [{"type": "integer"}]}},
        },
    }
    function = {"name": "f", "parameters": schema}
    request = parse(tools=[{"functionDeclarations": [function]}])
    assert request.tools[0]["function"]["parameters"] == google.to_json_schema(schema)


def test_settings_and_tools_that_have_no_effect_are_named() -> None:
    request = parse(
        generationConfig={"temperature": 0, "topK": 1, "responseMimeType": "application/json"},
        toolConfig={"functionCallingConfig": {"mode": "ANY"}},
        tools=[{"googleSearch": {}}],
        safetySettings=[{"category": "c"}],
    )
    wanted = ("temperature", "topK", "responseMimeType", "toolConfig", "tools.googleSearch")
    assert request.ignored == wanted
    assert not request.show_thinking
    assert parse(generationConfig={"thinkingConfig": {"includeThoughts": True}}).show_thinking


@pytest.mark.parametrize(
    ("changes", "is_side"),
    [
        ({"generationConfig": {"responseMimeType": "application/json"}}, True),
        ({"tools": [{"googleSearch": {}}]}, True),
        ({"tools": [{"urlContext": {}}, {"functionDeclarations": [{"name": "f"}]}]}, False),
        ({}, False),
    ],
)
def test_verdicts_and_searches_are_asides_of_gemini_cli_and_of_no_other_program(
    changes: Block, is_side: bool
) -> None:
    wanted = "side" if is_side else None
    assert parse(GEMINI_CLI, **changes).attribution.request_class == wanted
    assert parse(**changes).attribution.request_class is None


def test_a_count_is_of_contents_or_of_a_whole_request() -> None:
    whole = {"model": "models/m", "systemInstruction": {"parts": [{"text": "s"}]}, **BASE}
    for body, texts in ((BASE, ["hi"]), ({"generateContentRequest": whole}, ["s", "hi"])):
        pieces = google.COUNT.parse_request(orjson.dumps(body), {}).request.pieces
        assert [piece.text for piece in pieces] == texts


# --- answers ------------------------------------------------------------------------------------

EVENT = re.compile(r"^[ \t\r\n]*data: ([^\n\r\u2028\u2029]*)(?:\n\n|\r\r|\r\n\r\n)")
"""As Google's client in JavaScript reads events."""
REQUEST = TurnRequest("m", (), [], 10, show_thinking=True)
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "cached_tokens": 4}


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text()), st.integers(0, 3))
def test_a_stream_has_the_body_in_one_event(
    thinking: str, text: str, arguments: dict[str, str], pings: int
) -> None:
    calls = (IssuedCall("call_1", "f", arguments),)
    answer = Answer(thinking, text, calls, 0, "tool_use", None, USAGE)
    body = google_reply.build_response(answer, REQUEST, "r")
    stream = google_reply.open_stream(REQUEST, "r", 9) + google_reply.PING * pings
    stream += google_reply.complete_stream(body)
    found = EVENT.fullmatch(stream.decode())
    assert found is not None
    assert orjson.loads(found[1]) == body
    parts = body["candidates"][0]["content"]["parts"]
    assert [part.get("text") for part in parts if "text" in part] == [
        *([thinking] if thinking else []),
        *([text] if text else []),
    ]
    made = {"id": "call_1", "name": "f", "args": arguments}
    assert parts[-1] == {"functionCall": made}
    assert google_reply.sent_calls(answer) == calls


@pytest.mark.parametrize(
    ("reason", "said"),
    [("end_turn", "STOP"), ("stop_sequence", "STOP"), ("max_tokens", "MAX_TOKENS")],
)
def test_an_answer_has_a_part_its_reason_and_its_usage(reason: Any, said: str) -> None:
    answer = Answer("hm", "", (), 0, reason, None, USAGE)
    request = TurnRequest("m", (), [], 10)
    body = google_reply.build_response(answer, request, "r")
    (candidate,) = body["candidates"]
    assert candidate["content"] == {"role": "model", "parts": [{"text": ""}]}
    assert candidate["finishReason"] == said
    assert body["usageMetadata"] == {
        "promptTokenCount": 9,
        "candidatesTokenCount": 3,
        "totalTokenCount": 12,
        "cachedContentTokenCount": 4,
    }


@pytest.mark.parametrize("kind", RefusalKind)
def test_every_refusal_has_googles_envelope_streamed_or_not(kind: RefusalKind) -> None:
    refused = Refused(kind, "no\u2028")
    status, body = google.error_response(refused)
    assert body["error"]["code"] == status >= 400
    assert body["error"]["message"] == "no\u2028"
    failed = google_reply.PING + google_reply.fail_stream(refused, REQUEST, "r")
    assert orjson.loads(failed) == body, "its client looks for JSON that is no event"
