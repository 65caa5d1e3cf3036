"""The endpoints that take a conversation, by path."""

from __future__ import annotations

from typing import Any

from runners.gateway.dialects import anthropic, openai_chat, openai_responses
from runners.gateway.dialects.contract import Dialect

TURNS: dict[str, Dialect[Any, Any]] = {
    "/v1/messages": anthropic.TURN,
    "/v1/chat/completions": openai_chat.TURN,
    "/v1/responses": openai_responses.TURN,
}
"""Those that take a turn."""

COUNT = "/v1/messages/count_tokens"
"""Counts the tokens of a prompt."""

DIALECTS: dict[str, Dialect[Any, Any]] = {**TURNS, COUNT: anthropic.COUNT}
