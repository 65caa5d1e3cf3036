"""Request attribution by headers and metadata: thread, parent and purpose, as agent programs send
them.

All of it is untrusted: a value that is too long, or cannot be printed, counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from runners.gateway.conversation import RequestAttribution, RequestClass
from runners.records.record import MAIN_THREAD

MAX_VALUE_LENGTH = 200

UNNAMED = RequestAttribution()
"""Of the main thread."""

CLAUDE_CODE_CLASSES: dict[str | None, RequestClass] = {
    "main": "main",
    "subagent": "subagent",
    "auxiliary": "side",
    "compaction": "compaction",
}

CODEX_TURN_METADATA = "x-codex-turn-metadata"
"""Header, and key of ``client_metadata``: a JSON object."""

CODEX_SIDE_REQUESTS = ("prewarm", "memory")

SESSION, PARENT_SESSION = "x-session-id", "x-parent-session-id"
"""Headers of opencode and its relatives, whatever API they speak. A sub-agent is a session that
names its parent; the main agent's session, which also titles come from, names none.
"""

ATTRIBUTION_HEADERS = (
    *("x-claude-code-", "x-codex-", "x-openai-", "session-id", "thread-id"),
    *(SESSION, PARENT_SESSION, "user-agent"),
)
"""Beginnings of the headers that are read here; no key is among them."""


def read_attribution(
    headers: Mapping[str, str], client_metadata: Mapping[str, Any] | None = None
) -> RequestAttribution:
    """Read the headers and metadata of whichever known program sent a request.

    A program may speak any of the APIs, directly or through a translating proxy.
    """
    known = (read_claude_code(headers), read_codex(headers, client_metadata or {}))
    return next((found for found in known if found != UNNAMED), read_session(headers))


def read_session(headers: Mapping[str, str]) -> RequestAttribution:
    """Read the headers by which a program names its session and the one that started it."""
    session, parent = _printable(headers.get(SESSION)), _printable(headers.get(PARENT_SESSION))
    if session is None or parent in (None, session):
        return UNNAMED
    return RequestAttribution(thread=session, parent=parent)


def is_claude_code(headers: Mapping[str, str]) -> bool:
    """Return whether Claude Code sent a request."""
    return "x-claude-code-session-id" in headers


def is_gemini_cli(headers: Mapping[str, str]) -> bool:
    """Return whether gemini-cli sent a request."""
    return headers.get("user-agent", "").startswith("GeminiCLI")


def read_claude_code(headers: Mapping[str, str]) -> RequestAttribution:
    """Read Claude Code's headers (some come only with CLAUDE_CODE_GATEWAY_HINT_HEADERS=1)."""

    def header(name: str) -> str | None:
        return _printable(headers.get(f"x-claude-code-{name}"))

    return RequestAttribution(
        thread=header("agent-id") or MAIN_THREAD,
        parent=header("parent-agent-id"),
        agent_type=header("agent-type"),
        request_class=CLAUDE_CODE_CLASSES.get(header("request-class")),
        compacted=header("context-compacted") is not None,
    )


def read_codex(
    headers: Mapping[str, str], client_metadata: Mapping[str, Any]
) -> RequestAttribution:
    """Read Codex's headers and turn metadata; a header wins over the metadata.

    Codex's main thread has the session's own id, so it is the one that is not named.
    """
    metadata = _json_object(client_metadata.get(CODEX_TURN_METADATA)) or _json_object(
        headers.get(CODEX_TURN_METADATA)
    )

    def value(header: str, key: str) -> str | None:
        return _printable(headers.get(header)) or _printable(metadata.get(key))

    session, thread = value("session-id", "session_id"), value("thread-id", "thread_id")
    parent = value("x-codex-parent-thread-id", "parent_thread_id")
    is_main = thread in (None, session) or (session is None and parent is None)
    kind = _printable(metadata.get("request_kind"))
    request_class: RequestClass | None = None
    if kind == "compaction":
        request_class = "compaction"
    elif kind in CODEX_SIDE_REQUESTS:
        request_class = "side"
    elif kind == "turn":
        request_class = "main" if is_main else "subagent"
    if is_main or thread is None:
        return RequestAttribution(request_class=request_class)
    return RequestAttribution(
        thread=thread,
        parent=None if parent == session else parent,
        agent_type=value("x-openai-subagent", "subagent_kind"),
        request_class=request_class,
    )


def _printable(value: object) -> str | None:
    if isinstance(value, str) and 0 < len(value) <= MAX_VALUE_LENGTH and value.isprintable():
        return value
    return None


def _json_object(text: object) -> dict[str, Any]:
    try:
        found = orjson.loads(text) if isinstance(text, str) else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
