"""OpenAI Chat Completions: what a client gets back, as one body or as chunks.

A stream opens with the role, at once; comments keep it alive while the engine works; the content
follows when the turn is durable, then ``[DONE]``. An error chunk stands instead of what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runners.gateway.conversation import Answer, StopReason, TurnRequest
from runners.gateway.dialects import openai
from runners.gateway.dialects.sse import COMMENT_PING, frame_data
from runners.gateway.refusal import Refused

FINISH_REASONS: dict[StopReason, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
}

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ChatReply:
    """How one request is answered."""

    with_usage: bool
    """The client wants a last chunk with the usage."""

    NAME = "openai-chat"
    PING = COMMENT_PING

    def new_message_id(self) -> str:
        """Issue the id of an answer."""
        return openai.new_id("chatcmpl-")

    def new_call_id(self) -> str:
        """Issue the id of a tool call."""
        return openai.new_call_id()

    def message(self, answer: Answer, request: TurnRequest, message_id: str) -> dict[str, Any]:
        """Return the completion that answers a request."""
        said: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.calls:
            said["content"] = answer.text or None
            said["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": openai.write_arguments(call.arguments),
                    },
                }
                for call in answer.calls
            ]
        reason = FINISH_REASONS[answer.stop_reason]
        usage = answer.usage
        return {
            **_head(request.model, message_id, "chat.completion"),
            "choices": [{"index": 0, "message": said, "logprobs": None, "finish_reason": reason}],
            "usage": {
                "prompt_tokens": usage["prompt_tokens"],
                "completion_tokens": usage["completion_tokens"],
                "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"],
                "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
            },
        }

    def opening(self, request: TurnRequest, message_id: str, prompt_tokens: int) -> bytes:
        """Frame the chunk that says who speaks."""
        head = _head(request.model, message_id, "chat.completion.chunk")
        return self._chunk(head, {"role": "assistant"}, None)

    def rest(self, body: dict[str, Any]) -> bytes:
        """Frame the content, the finish reason, the usage if it is wanted, and the end."""
        head = _head(body["model"], body["id"], "chat.completion.chunk")
        (choice,) = body["choices"]
        frames = [self._chunk(head, delta, None) for delta in _deltas(choice["message"])]
        frames.append(self._chunk(head, {}, choice["finish_reason"]))
        if self.with_usage:
            frames.append(frame_data({**head, "choices": [], "usage": body["usage"]}))
        return b"".join(frames) + DONE

    def error(self, refused: Refused, request: TurnRequest, message_id: str) -> bytes:
        """Frame an error envelope."""
        _, body = openai.refusal(refused)
        return frame_data(body)

    def _chunk(self, head: dict[str, Any], delta: dict[str, Any], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self.with_usage else {}
        return frame_data({**head, "choices": [choice], **usage})


def _head(model: str, message_id: str, kind: str) -> dict[str, Any]:
    created = openai.created_at(message_id)
    return {"id": message_id, "object": kind, "created": created, "model": model}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Take a message apart, its role left out."""
    if message["content"] is not None:
        yield {"content": message["content"]}
    for index, call in enumerate(message.get("tool_calls", ())):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        named = {**call, "function": {"name": name, "arguments": ""}}
        yield {"tool_calls": [{"index": index, **named}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
