"""The endpoints that take a conversation, by path."""

from __future__ import annotations

from runners.gateway.dialects import anthropic, openai_chat, openai_responses
from runners.gateway.dialects.contract import ParseRequest

TURNS: dict[str, ParseRequest] = {
    "/v1/messages": anthropic.parse_request,
    "/v1/chat/completions": openai_chat.parse_request,
    "/v1/responses": openai_responses.parse_request,
}
"""Those that take a turn."""

COUNT = "/v1/messages/count_tokens"
"""Counts the tokens of a prompt."""

PARSERS: dict[str, ParseRequest] = {**TURNS, COUNT: anthropic.parse_count}
