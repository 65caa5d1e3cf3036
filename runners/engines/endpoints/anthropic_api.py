"""Anthropic's Messages API: requests and answers.

It follows Anthropic's API reference (``messages``, version 2023-06-01, read in 2026). Thinking is
not asked for, so no answer has thoughts that would have to be sent back with their signatures. The
end of each request is marked for the prompt cache, which changes costs and no answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import orjson

from conf.sections.engine import AnthropicEngineConfig
from runners.engines.contract import (
    Conversation,
    Generation,
    SamplingParams,
    TextCall,
    TextReply,
)
from runners.engines.endpoints.messages import Message, order_results, to_portable_id
from runners.records.record import UNKNOWN_VERSION

VERSION = "2023-06-01"
FINISH_REASONS = {
    "end_turn": "stop",
    "tool_use": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
CACHED = {"cache_control": {"type": "ephemeral"}}
NO_PARAMETERS = {"type": "object", "properties": {}}

Block = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnthropicApi:
    """An ``EndpointApi``."""

    section: AnthropicEngineConfig

    PATH = "/v1/messages"
    limit_field = "max_tokens"

    @property
    def headers(self) -> dict[str, str]:
        """See ``EndpointApi.headers``."""
        return {"anthropic-version": VERSION}

    def key_headers(self, key: str) -> dict[str, str]:
        """See ``EndpointApi.key_headers``."""
        return {"x-api-key": key}

    def build_request(self, prompt: Conversation, params: SamplingParams) -> dict[str, Any]:
        """See ``EndpointApi.build_request``."""
        messages = list(order_results(prompt.messages))
        first = next((n for n, each in enumerate(messages) if each["role"] != "system"), 0)
        body: dict[str, Any] = {
            "model": self.section.model,
            self.limit_field: params.max_new_tokens,
            "messages": list(_to_messages(messages[first:])),
            "stream": False,
        }
        system = [block for each in messages[:first] for block in _text_blocks(each["content"])]
        if system:
            body["system"] = [*system[:-1], {**system[-1], **CACHED}]
        sampling = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k if params.top_k > 0 else None,
        }
        for name in self.section.sampling_fields:
            if sampling[name] is not None:
                body[name] = sampling[name]
        if prompt.tools:
            body["tools"] = [_tool(tool["function"]) for tool in prompt.tools]
        if params.stop:
            body["stop_sequences"] = list(params.stop)
        return body

    def read_answer(self, answer: dict[str, Any], waited_s: float) -> Generation:
        """See ``EndpointApi.read_answer``."""
        content, usage = answer["content"], answer["usage"]
        cached = int(usage.get("cache_read_input_tokens") or 0)
        written = int(usage.get("cache_creation_input_tokens") or 0)
        return Generation(
            output_ids=np.empty(0, np.int32),
            logprobs=np.empty(0, np.float32),
            finish_reason=FINISH_REASONS[answer["stop_reason"]],
            matched=answer.get("stop_sequence"),
            # their input_tokens leaves out what the cache held, and what it took
            prompt_tokens=int(usage["input_tokens"]) + cached + written,
            cached_tokens=cached,
            weight_version=UNKNOWN_VERSION,
            engine_s=waited_s,
            reply=TextReply(
                text="".join(block["text"] for block in content if block["type"] == "text"),
                reasoning="".join(
                    block["thinking"] for block in content if block["type"] == "thinking"
                ),
                calls=tuple(_read_call(each) for each in content if each["type"] == "tool_use"),
                completion_tokens=int(usage["output_tokens"]),
            ),
        )


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    tool = {"name": function["name"], "input_schema": function.get("parameters") or NO_PARAMETERS}
    if function.get("description"):
        tool["description"] = function["description"]
    return tool


def _to_messages(messages: list[Message]) -> Iterator[Message]:
    """Yield messages that alternate between user and assistant; the last block is marked."""
    found: list[Message] = []
    for role, group in groupby(messages, lambda each: _ROLES.get(each["role"], "user")):
        blocks = [block for message in group for block in _to_blocks(message)]
        if blocks:  # thoughts alone say nothing that may be sent
            found.append({"role": role, "content": blocks})
    for last, each in ((each is found[-1], each) for each in found):
        blocks = each["content"]
        yield {**each, "content": [*blocks[:-1], {**blocks[-1], **CACHED}]} if last else each


_ROLES = {"assistant": "assistant"}


def _to_blocks(message: Message) -> Iterator[Block]:
    match message["role"]:
        case "tool":
            yield {
                "type": "tool_result",
                "tool_use_id": to_portable_id(message["tool_call_id"]),
                "content": message["content"],
            }
        case "system":  # behind the first messages the API has no place for one
            yield from _text_blocks(f"<system>\n{message['content']}\n</system>")
        case _:
            yield from _text_blocks(message["content"])
    for call in message.get("tool_calls") or ():
        yield {
            "type": "tool_use",
            "id": to_portable_id(call["id"]),
            "name": call["function"]["name"],
            "input": call["function"]["arguments"],
        }


def _text_blocks(text: str) -> Iterator[Block]:
    if text.strip():  # the API refuses blank ones
        yield {"type": "text", "text": text}


def _read_call(block: Block) -> TextCall:
    arguments = block["input"]
    raw = f"{block['name']}({orjson.dumps(arguments).decode()})"
    return TextCall(block["name"], arguments if isinstance(arguments, dict) else None, raw)
