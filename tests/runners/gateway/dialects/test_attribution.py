"""Request attribution from Claude Code's and Codex's headers and metadata."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runners.gateway.conversation import RequestAttribution
from runners.gateway.dialects import attribution
from runners.gateway.dialects.endpoints import DIALECTS

AGENT = "x-claude-code-agent-id"


def turn_metadata(**fields: Any) -> dict[str, str]:
    return {attribution.CODEX_TURN_METADATA: json.dumps(fields)}


def test_a_request_without_headers_is_the_main_threads() -> None:
    assert (
        attribution.read_claude_code({}) == attribution.read_codex({}, {}) == RequestAttribution()
    )


def test_claude_codes_headers_are_read() -> None:
    headers = {
        AGENT: "a1",
        "x-claude-code-parent-agent-id": "a0",
        "x-claude-code-agent-type": "Explore",
        "x-claude-code-request-class": "subagent",
        "x-claude-code-context-compacted": "auto",
    }
    assert attribution.read_claude_code(headers) == RequestAttribution(
        "a1", "a0", "Explore", "subagent", compacted=True
    )


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("main", "main"),
        ("subagent", "subagent"),
        ("auxiliary", "side"),
        ("compaction", "compaction"),
        ("side", None),
        ("", None),
    ],
)
def test_claude_codes_request_classes_are_translated(said: str, meant: str | None) -> None:
    assert (
        attribution.read_claude_code({"x-claude-code-request-class": said}).request_class == meant
    )


@pytest.mark.parametrize("value", ["", "a" * 201, "a\x00", "a\nb", "a\x7f", "\udcff", "\u202e"])
def test_an_invalid_header_counts_as_absent(value: str) -> None:
    assert attribution.read_claude_code({AGENT: value}) == RequestAttribution()
    metadata = turn_metadata(session_id="s", thread_id=value)
    assert (
        attribution.read_codex({}, metadata)
        == attribution.read_codex(metadata, {})
        == RequestAttribution()
    )


def test_a_header_of_the_greatest_length_is_read() -> None:
    assert attribution.read_claude_code({AGENT: "a" * 200}).thread == "a" * 200


def test_codexs_main_thread_has_the_sessions_id() -> None:
    headers = {"session-id": "s", "thread-id": "s", **turn_metadata(request_kind="turn")}
    assert attribution.read_codex(headers, {}) == RequestAttribution(request_class="main")


def test_codexs_sub_agents_are_threads_of_their_own() -> None:
    headers = {
        "session-id": "s",
        "thread-id": "t",
        "x-codex-parent-thread-id": "s",
        "x-openai-subagent": "collab_spawn",
        **turn_metadata(request_kind="turn"),
    }
    child = attribution.read_codex(headers, {})
    assert child == RequestAttribution("t", None, "collab_spawn", "subagent")
    nested = attribution.read_codex(
        {**headers, "thread-id": "u", "x-codex-parent-thread-id": "t"}, {}
    )
    assert (nested.thread, nested.parent) == ("u", "t")


def test_codexs_metadata_is_read_like_its_headers() -> None:
    metadata = turn_metadata(
        session_id="s",
        thread_id="u",
        parent_thread_id="t",
        subagent_kind="review",
        request_kind="turn",
    )
    wanted = RequestAttribution("u", "t", "review", "subagent")
    assert attribution.read_codex({}, metadata) == attribution.read_codex(metadata, {}) == wanted


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        ("compaction", "compaction"),
        ("memory", "side"),
        ("prewarm", "side"),
        ("turn", "main"),
        ("news", None),
        (7, None),
    ],
)
def test_codexs_request_kinds_are_translated(kind: object, meant: str | None) -> None:
    assert attribution.read_codex({}, turn_metadata(request_kind=kind)).request_class == meant


@pytest.mark.parametrize("broken", ["", "{", "[]", "7", "null", '{"thread_id": 7}'])
def test_broken_metadata_is_tolerated(broken: str) -> None:
    headers = {"session-id": "s", "thread-id": "t", attribution.CODEX_TURN_METADATA: broken}
    assert attribution.read_codex(headers, {attribution.CODEX_TURN_METADATA: 7}).thread == "t"


def test_a_thread_without_a_session_or_a_parent_is_the_main_one() -> None:
    assert attribution.read_codex({"thread-id": "t"}, {}) == RequestAttribution()


SESSION = {"x-session-id": "s2", "x-parent-session-id": "s1"}


def test_a_session_that_names_its_parent_is_a_thread() -> None:
    assert attribution.read_session(SESSION) == RequestAttribution("s2", "s1")
    assert attribution.read_session({"x-session-id": "s1"}) == RequestAttribution()
    assert attribution.read_session({"x-parent-session-id": "s1"}) == RequestAttribution()
    own = {"x-session-id": "s1", "x-parent-session-id": "s1"}
    assert attribution.read_session(own) == RequestAttribution()


@pytest.mark.parametrize("value", ["", "a" * 201, "a\nb", "\u202e"])
def test_an_invalid_session_or_parent_counts_as_absent(value: str) -> None:
    for name in SESSION:
        assert attribution.read_session({**SESSION, name: value}) == RequestAttribution()


BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
}


@pytest.mark.parametrize(
    ("headers", "thread"),
    [
        (SESSION, "s2"),
        ({AGENT: "a1"}, "a1"),
        ({"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "s"}, "t"),
        ({}, "main"),
    ],
)
@pytest.mark.parametrize("path", BODIES)
def test_a_program_is_known_by_its_headers_whatever_api_it_speaks(
    path: str, headers: dict[str, str], thread: str
) -> None:
    parsed = DIALECTS[path].parse_request(
        json.dumps({"model": "m", **BODIES[path]}).encode(), headers
    )
    assert parsed.request.attribution.thread == thread
