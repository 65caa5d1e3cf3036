"""OpenAI Chat Completions: answers, as one body or as chunks.

Order of a stream: the role at once, comments while the engine works, the content when the turn is
durable, then ``[DONE]``; or an error chunk in place of the missing chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runners.gateway.conversation import Answer, IssuedCall, StopReason, TurnRequest
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
    """Builds and frames the answer to one request."""

    with_usage: bool
    """The client asked for a last chunk with the usage."""

    NAME = "openai-chat"
    CALL_ID_PREFIX = openai.CALL_ID_PREFIX
    PING = COMMENT_PING

    def new_message_id(self) -> str:
        """Issue the id of an answer."""
        return openai.new_id("chatcmpl-")

    def build_response(
        self, answer: Answer, request: TurnRequest, message_id: str
    ) -> dict[str, Any]:
        """Return the completion that answers a request."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.calls:
            message["content"] = answer.text or None
            message["tool_calls"] = [
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
            "choices": [
                {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
            ],
            "usage": {
                "prompt_tokens": usage["prompt_tokens"],
                "completion_tokens": usage["completion_tokens"],
                "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"],
                "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
            },
        }

    def sent_calls(self, answer: Answer) -> Sequence[IssuedCall]:
        """See ``ResponseBuilder.sent_calls``."""
        return answer.calls

    def open_stream(self, request: TurnRequest, message_id: str, prompt_tokens: int) -> bytes:
        """Frame the chunk with the role."""
        head = _head(request.model, message_id, "chat.completion.chunk")
        return self._chunk(head, {"role": "assistant"}, None)

    def complete_stream(self, body: dict[str, Any]) -> bytes:
        """Frame the content, the finish reason, the usage if it was asked for, and the end."""
        head = _head(body["model"], body["id"], "chat.completion.chunk")
        (choice,) = body["choices"]
        frames = [self._chunk(head, delta, None) for delta in _deltas(choice["message"])]
        frames.append(self._chunk(head, {}, choice["finish_reason"]))
        if self.with_usage:
            frames.append(frame_data({**head, "choices": [], "usage": body["usage"]}))
        return b"".join(frames) + DONE

    def fail_stream(self, refused: Refused, request: TurnRequest, message_id: str) -> bytes:
        """Frame the error envelope as a chunk. No ``[DONE]`` follows: the answer is incomplete."""
        _, body = openai.error_response(refused)
        return frame_data(body)

    def _chunk(self, head: dict[str, Any], delta: dict[str, Any], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self.with_usage else {}
        return frame_data({**head, "choices": [choice], **usage})


def _head(model: str, message_id: str, kind: str) -> dict[str, Any]:
    created = openai.created_at(message_id)
    return {"id": message_id, "object": kind, "created": created, "model": model}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the deltas that bring a message, without its role."""
    if message["content"] is not None:
        yield {"content": message["content"]}
    for index, call in enumerate(message.get("tool_calls", ())):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        named = {**call, "function": {"name": name, "arguments": ""}}
        yield {"tool_calls": [{"index": index, **named}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
