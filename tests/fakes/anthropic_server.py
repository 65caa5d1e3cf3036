"""A stand-in for a server of Anthropic's Messages API.

It follows Anthropic's API reference (``messages``, ``models/list`` and ``errors``, version
2023-06-01, read in 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from aiohttp import web

from tests.fakes.endpoint_servers import EndpointServer, TextAnswer, json_response

ANTHROPIC_FIELDS = {
    *("model", "messages", "max_tokens", "system", "temperature", "top_p", "top_k"),
    *("stop_sequences", "stream", "tools"),
}


class AnthropicServer(EndpointServer):
    """A stand-in for a server of Anthropic's Messages API."""

    path = "/v1/messages"
    known_fields: ClassVar = ANTHROPIC_FIELDS

    def find_header_fault(self, headers: Mapping[str, str]) -> web.Response | None:
        """See ``EndpointServer``."""
        if headers.get("anthropic-version") != "2023-06-01":
            return self.error(400, "anthropic-version: header is required")
        if self.api_key is None or headers.get("x-api-key") == self.api_key:
            return None
        return self.error(401, "invalid x-api-key")

    def find_fault(self, body: dict[str, Any]) -> str | None:
        """See ``EndpointServer``."""
        if {"temperature", "top_p"} <= set(body):
            return "`temperature` and `top_p` cannot both be specified for this model."
        waiting: set[str] = set()
        for number, message in enumerate(body["messages"]):
            if message["role"] != ("assistant" if number % 2 else "user"):
                return f"messages.{number}: roles must alternate between user and assistant"
            results = [b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"]
            if set(results) != waiting:
                return f"messages.{number}: `tool_use` ids without `tool_result` blocks"
            kinds = [block["type"] for block in message["content"]]
            if "tool_result" in kinds[len(results) :]:
                return f"messages.{number}: `tool_result` blocks must come first"
            waiting = {b["id"] for b in message["content"] if b["type"] == "tool_use"}
            texts = [block["text"] for block in message["content"] if block["type"] == "text"]
            if not message["content"] or not all(text.strip() for text in texts):
                return f"messages.{number}: text content blocks must be non-empty"
        for tool in body.get("tools", ()):
            if set(tool) - {"name", "description", "input_schema"}:
                return f"tools: extra inputs are not permitted: {tool}"
        return None

    def describe(self, model: str) -> dict[str, Any]:
        """See ``EndpointServer``."""
        created = "2026-01-01T00:00:00Z"
        entry = {"type": "model", "id": model, "display_name": model, "created_at": created}
        return {**entry, "lifecycle": "active"}

    def error(
        self, status: int, message: str, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        """See ``EndpointServer``."""
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kinds |= {413: "request_too_large", 500: "api_error", 529: "overloaded_error"}
        error = {"type": kinds.get(status, "invalid_request_error"), "message": message}
        return json_response(
            {"type": "error", "error": error, "request_id": "req_1"}, status, headers
        )

    def too_long(self, prompt: int, body: dict[str, Any]) -> web.Response:
        """See ``EndpointServer``."""
        return self.error(400, f"prompt is too long: {prompt} tokens > {self.context} maximum")

    def write(self, body: dict[str, Any], answer: TextAnswer, prompt: int) -> dict[str, Any]:
        """See ``EndpointServer``."""
        content: list[dict[str, Any]] = []
        if answer.text:
            content.append({"type": "text", "text": answer.text})
        content += [
            {
                "type": "tool_use",
                "id": f"toolu_vendor{number}",
                "name": call.name,
                "input": call.arguments,
            }
            for number, call in enumerate(answer.calls)
        ]
        reason = "tool_use" if answer.calls else "end_turn"
        return {
            "id": f"msg_{len(self.requests)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": answer.finish or ("stop_sequence" if answer.stop else reason),
            "stop_sequence": answer.stop,
            "usage": {
                "input_tokens": prompt - answer.cached_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": answer.cached_tokens,
                "output_tokens": answer.completion_tokens,
            },
        }
