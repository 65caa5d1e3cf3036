"""Anthropic Messages: a stream assembles to the body."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.conversation import TurnRequest
from runners.gateway.dialects import anthropic_reply
from runners.gateway.refusal import RefusalKind, Refused
from tests.fakes.running_gateway import assemble_message, read_events

TEXT = st.text()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
BLOCKS = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, TEXT),
        st.builds(
            lambda text, mark: {"type": "thinking", "thinking": text, "signature": mark}, TEXT, TEXT
        ),
        st.builds(
            lambda name, value: {"type": "tool_use", "id": "t", "name": name, "input": value},
            TEXT,
            st.dictionaries(TEXT, JSON, max_size=4),
        ),
    ),
    max_size=5,
)


@given(BLOCKS, st.sampled_from(["end_turn", "tool_use", "max_tokens"]), st.integers(0, 3))
def test_a_stream_assembles_to_the_body(
    content: list[dict[str, Any]], reason: str, pings: int
) -> None:
    request = TurnRequest("m", (), [], 10)
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    end = {"stop_reason": reason, "stop_sequence": None, "usage": {"output_tokens": 3}}
    message = {**head, "content": content, **end}
    stream = anthropic_reply.open_stream(request, "msg_1", 7) + anthropic_reply.PING * pings
    assert (
        assemble_message(read_events(stream + anthropic_reply.complete_stream(message))) == message
    )


@given(TEXT)
def test_no_text_breaks_out_of_its_frame(text: str) -> None:
    request = TurnRequest("m", (), [], 10)
    (event,) = read_events(
        anthropic_reply.fail_stream(Refused(RefusalKind.BROKEN, text), request, "msg_1")
    )
    assert event["error"]["message"] == text
