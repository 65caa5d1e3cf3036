"""OpenAI's Chat Completions API: requests and answers.

It follows OpenAI's API reference (``chat/create``, 2026), llama.cpp's ``tools/server/README.md``
and vLLM's ``docs/serving/openai_compatible_server.md``. The reasoning that such servers return
beside the text is recorded, and not sent back: OpenAI's own API refuses the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from conf.sections.engine import OpenaiEngineConfig
from runners.engines.connection import make_bearer
from runners.engines.contract import (
    Conversation,
    Generation,
    SamplingParams,
    TextCall,
    TextReply,
)
from runners.engines.endpoints.messages import Message, order_results, to_portable_id
from runners.records.record import UNKNOWN_VERSION

FINISH_REASONS = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "content_filter": "refusal",
}


@dataclass(frozen=True, slots=True)
class OpenaiApi:
    """An ``EndpointApi``."""

    section: OpenaiEngineConfig

    PATH = "/v1/chat/completions"

    @property
    def limit_field(self) -> str:
        """See ``EndpointApi.limit_field``."""
        return self.section.limit_field

    @property
    def headers(self) -> dict[str, str]:
        """See ``EndpointApi.headers``."""
        return {}

    def key_headers(self, key: str) -> dict[str, str]:
        """See ``EndpointApi.key_headers``."""
        return make_bearer(key)

    def build_request(self, prompt: Conversation, params: SamplingParams) -> dict[str, Any]:
        """See ``EndpointApi.build_request``."""
        body: dict[str, Any] = {
            "model": self.section.model,
            "messages": list(_to_messages(prompt)),
            self.limit_field: params.max_new_tokens,
            "stream": False,
        }
        sampling = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "seed": params.sampling_seed,
        }
        for name in self.section.sampling_fields:
            if sampling[name] is not None:
                body[name] = sampling[name]
        if prompt.tools:
            body["tools"] = [{"type": "function", "function": _function(t)} for t in prompt.tools]
        if params.stop:
            body["stop"] = list(params.stop)
        return body

    def read_answer(self, answer: dict[str, Any], waited_s: float) -> Generation:
        """See ``EndpointApi.read_answer``."""
        [choice] = answer["choices"]
        message, usage = choice["message"], answer["usage"]
        # servers that count neither cached tokens nor reasons leave these out, or send null
        details = usage.get("prompt_tokens_details") or {}
        stop = choice.get("stop_reason")
        return Generation(
            output_ids=np.empty(0, np.int32),
            logprobs=np.empty(0, np.float32),
            finish_reason=FINISH_REASONS[choice["finish_reason"]],
            matched=stop if isinstance(stop, str) else None,
            prompt_tokens=int(usage["prompt_tokens"]),
            cached_tokens=int(details.get("cached_tokens") or 0),
            weight_version=UNKNOWN_VERSION,
            engine_s=waited_s,
            reply=TextReply(
                text=_text(message.get("content")) or _text(message.get("refusal")),
                reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
                calls=tuple(map(_read_call, message.get("tool_calls") or ())),
                completion_tokens=int(usage["completion_tokens"]),
            ),
        )


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's function without what it has no value for, which OpenAI's API refuses."""
    return {name: value for name, value in tool["function"].items() if value is not None}


def _to_messages(prompt: Conversation) -> Iterator[Message]:
    for message in order_results(prompt.messages):
        match message["role"]:
            case "assistant":
                calls = message.get("tool_calls") or []
                if calls:
                    yield {
                        "role": "assistant",
                        "content": message["content"],
                        "tool_calls": [_call(call) for call in calls],
                    }
                elif message["content"]:  # thoughts alone say nothing that may be sent
                    yield {"role": "assistant", "content": message["content"]}
            case "tool":
                call_id = to_portable_id(message["tool_call_id"])
                yield {"role": "tool", "tool_call_id": call_id, "content": message["content"]}
            case role:
                yield {"role": role, "content": message["content"]}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": to_portable_id(call["id"]),
        "type": "function",
        "function": {
            "name": function["name"],
            "arguments": orjson.dumps(function["arguments"]).decode(),
        },
    }


def _read_call(call: dict[str, Any]) -> TextCall:
    name, written = call["function"]["name"], call["function"]["arguments"]
    try:
        # an empty text is what some servers send for a function without parameters
        arguments = orjson.loads(written or "{}") if isinstance(written, str) else written
    except orjson.JSONDecodeError:
        arguments = None
    return TextCall(
        str(name), arguments if isinstance(arguments, dict) else None, f"{name}({written})"
    )


def _text(value: object) -> str:
    """Return a text; content of parts, as some servers send it, is joined."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""
