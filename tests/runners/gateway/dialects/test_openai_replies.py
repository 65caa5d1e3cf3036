"""OpenAI's streams assemble to the body that an answer without a stream has."""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_hex
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.conversation import Answer, IssuedCall, StopReason, TurnRequest
from runners.gateway.dialects import openai
from runners.gateway.dialects.openai_chat_reply import ChatReply
from runners.gateway.dialects.openai_responses_reply import ResponsesReply
from runners.gateway.dialects.openai_tools import PolicyTool
from runners.gateway.refusal import RefusalKind, Refused
from tests.fakes.openai_clients import (
    assembled_chat,
    assembled_response,
    chunks,
    frames,
    response_events,
)

REQUEST = TurnRequest("m", (), [], 10, show_thinking=True)
TOOLS: Mapping[str, PolicyTool] = {
    "run": PolicyTool({}, "function", "run"),
    "ns__run": PolicyTool({}, "function", "run", "ns"),
    "patch": PolicyTool({}, "custom", "patch"),
    "local_shell": PolicyTool({}, "local_shell", "local_shell"),
}
TEXT = st.text()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.one_of(
    st.dictionaries(TEXT, JSON, max_size=4), st.builds(lambda text: {"input": text}, TEXT)
)
CALLS = st.lists(
    st.builds(
        lambda name, arguments: IssuedCall(openai.CALL_ID_PREFIX + token_hex(12), name, arguments),
        st.sampled_from([*TOOLS, "unknown"]),
        ARGUMENTS,
    ),
    max_size=4,
).map(tuple)
ANSWERS = st.builds(
    Answer,
    thinking=TEXT,
    text=TEXT,
    calls=CALLS,
    malformed_calls=st.just(0),
    stop_reason=st.sampled_from(get_args(StopReason)),
    stop_sequence=st.none(),
    usage=st.just({"prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 2}),
)


@given(ANSWERS, st.integers(0, 3), st.booleans())
def test_chunks_assemble_to_the_completion(answer: Answer, pings: int, with_usage: bool) -> None:
    reply = ChatReply(with_usage=with_usage)
    name = reply.new_message_id()
    body = reply.build_response(answer, REQUEST, name)
    stream = reply.open_stream(REQUEST, name, 5) + reply.PING * pings + reply.complete_stream(body)
    came = chunks(stream)
    assert assembled_chat(came) == {**body, "usage": body["usage"] if with_usage else None}
    assert [chunk.get("usage", ...) for chunk in came[:-1]] == [None if with_usage else ...] * (
        len(came) - 1
    )
    said = body["choices"][0]["message"]
    assert (said["content"] or "") == answer.text
    assert len(said.get("tool_calls", ())) == len(answer.calls)


@given(ANSWERS, st.integers(0, 3))
def test_events_assemble_to_the_response(answer: Answer, pings: int) -> None:
    reply = ResponsesReply(TOOLS)
    name = reply.new_message_id()
    body = reply.build_response(answer, REQUEST, name)
    stream = reply.open_stream(REQUEST, name, 5) + reply.PING * pings + reply.complete_stream(body)
    assert assembled_response(response_events(stream)) == body
    ids = [item["id"] for item in body["output"]]
    assert len(set(ids)) == len(ids)
    called = [item["call_id"] for item in body["output"] if "call_id" in item]
    assert called == [call.id for call in answer.calls]


@given(TEXT)
def test_no_text_breaks_out_of_its_frame(text: str) -> None:
    refused = Refused(RefusalKind.BROKEN, text)
    chat, responses = ChatReply(with_usage=False), ResponsesReply({})
    assert len(frames(chat.fail_stream(refused, REQUEST, chat.new_message_id()))) == 1
    assert len(frames(responses.fail_stream(refused, REQUEST, responses.new_message_id()))) == 1


@pytest.mark.parametrize(
    ("refused", "message", "status", "kind", "code"),
    [
        (RefusalKind.INVALID, "model: bad", 400, "invalid_request_error", None),
        (
            RefusalKind.INVALID,
            "prompt is too long: 9 tokens > 8 maximum",
            *(400, "invalid_request_error", "context_length_exceeded"),
        ),
        (RefusalKind.UNAUTHENTICATED, "who?", 401, "invalid_request_error", "invalid_api_key"),
        (RefusalKind.FORBIDDEN, "finished", 403, "invalid_request_error", None),
        (RefusalKind.UNKNOWN, "nothing", 404, "invalid_request_error", None),
        (RefusalKind.TOO_LARGE, "big", 413, "invalid_request_error", None),
        (RefusalKind.BROKEN, "broken", 500, "server_error", "server_error"),
        (RefusalKind.OVERLOADED, "later", 503, "server_error", "server_error"),
    ],
)
def test_refusals_have_openais_envelope(
    refused: RefusalKind, message: str, status: int, kind: str, code: str | None
) -> None:
    found, body = openai.error_response(Refused(refused, message, param="model"))
    assert found == status
    error = {"message": message, "type": kind, "param": "model", "code": code}
    assert body == {"error": error}


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (Refused(RefusalKind.OVERLOADED, "later"), "server_error"),
        (Refused(RefusalKind.INVALID, "prompt is too long: 9 > 8"), "context_length_exceeded"),
        (Refused(RefusalKind.FORBIDDEN, "finished"), "invalid_prompt"),
    ],
)
def test_a_failed_stream_gives_its_reason_and_is_never_complete(
    refused: Refused, code: str
) -> None:
    reply = ResponsesReply({})
    name = reply.new_message_id()
    stream = reply.open_stream(REQUEST, name, 5) + reply.fail_stream(refused, REQUEST, name)
    last = response_events(stream)[-1]
    assert last["type"] == "response.failed"
    response: dict[str, Any] = last["response"]
    assert (response["id"], response["status"]) == (name, "failed")
    assert response["error"] == {"code": code, "message": str(refused)}


@pytest.mark.parametrize("prefix", ["resp_", "chatcmpl-"])
def test_an_id_holds_the_time_of_its_issue(prefix: str) -> None:
    name = openai.new_id(prefix)
    assert int(name.removeprefix(prefix)[:8], 16) == openai.created_at(name)
    assert openai.new_id(prefix) != name
