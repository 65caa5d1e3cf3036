"""A stand-in for a server of OpenAI's Chat Completions API.

It follows OpenAI's API reference (``chat/create`` and ``models/list``, 2026). ``dialect`` changes
what llama.cpp (``tools/server/README.md``) and vLLM (``docs/serving/openai_compatible_server.md``)
document otherwise: reasoning, stop strings, errors, ``top_k``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import orjson
from aiohttp import web

from tests.fakes.endpoint_servers import EndpointServer, TextAnswer, json_response

OPENAI_FIELDS = {
    *("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed"),
    *("stop", "stream", "tools"),
}


class OpenaiServer(EndpointServer):
    """A stand-in for a server of OpenAI's Chat Completions API."""

    path = "/v1/chat/completions"
    known_fields: ClassVar = OPENAI_FIELDS

    def __init__(self, dialect: Literal["openai", "llama.cpp", "vllm"] = "openai") -> None:
        super().__init__()
        self.dialect = dialect
        if dialect != "openai":
            self.fields = {*OPENAI_FIELDS, "top_k"}
        self.reasons = False
        """One of OpenAI's reasoning models: no ``max_tokens``, no sampling settings."""

    def find_header_fault(self, headers: Mapping[str, str]) -> web.Response | None:
        """See ``EndpointServer``."""
        if self.api_key is None or headers.get("authorization") == f"Bearer {self.api_key}":
            return None
        return self.error(401, f"Incorrect API key provided: {headers.get('authorization')}.")

    def find_fault(self, body: dict[str, Any]) -> str | None:
        """See ``EndpointServer``."""
        if self.reasons:
            for name in ("max_tokens", "temperature", "top_p"):
                if name in body:
                    return f"Unsupported parameter: '{name}' is not supported with this model."
        waiting: set[str] = set()
        for number, message in enumerate(body["messages"]):
            known = {"role", "content", "tool_calls", "tool_call_id"}
            if extra := set(message) - known:
                return f"Additional properties are not allowed ({sorted(extra)} were unexpected)"
            if message["role"] == "tool":
                if message["tool_call_id"] not in waiting:
                    return f"messages[{number}]: a tool message must follow its tool_calls"
                waiting.remove(message["tool_call_id"])
                continue
            if waiting:
                return f"tool_call_ids did not have response messages: {sorted(waiting)}"
            for call in message.get("tool_calls", ()):
                if len(call["id"]) > 40:
                    return f"messages[{number}]: tool_calls id is too long"
                assert isinstance(orjson.loads(call["function"]["arguments"]), dict)
                waiting.add(call["id"])
        for tool in body.get("tools", ()):
            if tool["type"] != "function" or None in tool["function"].values():
                return f"Invalid tool: {tool}"
        return None

    def describe(self, model: str) -> dict[str, Any]:
        """See ``EndpointServer``."""
        return {"id": model, "object": "model", "created": 1_760_000_000, "owned_by": "stand-in"}

    def error(
        self, status: int, message: str, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        """See ``EndpointServer``."""
        error: dict[str, Any] = {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": None if self.dialect == "openai" else status,
        }
        return json_response({"error": error}, status, headers)

    def too_long(self, prompt: int, body: dict[str, Any]) -> web.Response:
        """See ``EndpointServer``."""
        head = f"This model's maximum context length is {self.context} tokens"
        match self.dialect:
            case "llama.cpp":
                message = (
                    f"request ({prompt} tokens) exceeds the available context size "
                    f"({self.context} tokens), try increasing it"
                )
                error = {"code": 400, "message": message, "type": "exceed_context_size_error"}
                counts = {"n_prompt_tokens": prompt, "n_ctx": self.context}
                return json_response({"error": {**error, **counts}}, 400)
            case "vllm":
                return self.error(400, f"{head} and your request has {prompt} input tokens.")
        return self.error(400, f"{head}. However, your messages resulted in {prompt} tokens.")

    def write(self, body: dict[str, Any], answer: TextAnswer, prompt: int) -> dict[str, Any]:
        """See ``EndpointServer``."""
        calls = [
            {
                "id": f"call_vendor{number}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments
                    if isinstance(call.arguments, str)
                    else orjson.dumps(call.arguments).decode(),
                },
            }
            for number, call in enumerate(answer.calls)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
        choice: dict[str, Any] = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": answer.finish or ("tool_calls" if calls else "stop"),
        }
        if calls:
            message["tool_calls"] = calls
        if self.dialect == "openai":
            message |= {"refusal": None, "annotations": []}
        elif answer.reasoning:
            name = "reasoning_content" if self.dialect == "llama.cpp" else "reasoning"
            message[name] = answer.reasoning
        if self.dialect == "vllm":
            choice["stop_reason"] = answer.stop
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": answer.completion_tokens,
            "total_tokens": prompt + answer.completion_tokens,
        }
        if self.dialect == "openai":
            usage["prompt_tokens_details"] = {"cached_tokens": answer.cached_tokens}
            usage["completion_tokens_details"] = {"reasoning_tokens": 0}
        return {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": body["model"],
            "choices": [choice],
            "usage": usage,
        }
