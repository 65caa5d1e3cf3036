"""OpenAI Responses: answers, as one body or as a stream.

Order of a stream: ``response.created`` and ``response.in_progress`` at once, comments while the
engine works, the items when the turn is durable, then ``response.completed`` or
``response.incomplete``; or ``response.failed`` in place of the missing events. Tools, instructions
and the like are not echoed: a body is kept for every chain, to answer retries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runners.gateway.conversation import Answer, IssuedCall, TurnRequest
from runners.gateway.dialects import openai
from runners.gateway.dialects.openai_tools import PolicyTool, to_call_item, to_sent_call
from runners.gateway.dialects.sse import COMMENT_PING, frame_event
from runners.gateway.refusal import Refused

_OPENING_EVENTS = 2
"""``sequence_number`` counts on from them."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResponsesReply:
    """Builds and frames the answer to one request."""

    tools: Mapping[str, PolicyTool]
    """The client's tools, by the names that the policy knows."""

    NAME = "openai-responses"
    CALL_ID_PREFIX = openai.CALL_ID_PREFIX
    PING = COMMENT_PING

    def new_message_id(self) -> str:
        """Issue the id of an answer."""
        return openai.new_id("resp_")

    def build_response(
        self, answer: Answer, request: TurnRequest, message_id: str
    ) -> dict[str, Any]:
        """Return the Response that answers a request."""
        is_cut = answer.stop_reason == "max_tokens"
        status = "incomplete" if is_cut else "completed"
        tail = message_id.removeprefix("resp_")
        output: list[dict[str, Any]] = []
        if answer.thinking and request.show_thinking:
            output.append(_reasoning(f"rs_{tail}", answer.thinking))
        if answer.text or not answer.calls:
            output.append(_message(f"msg_{tail}", answer.text, status))
        output += [to_call_item(call, self.tools) for call in answer.calls]
        return {
            **_empty_response(request.model, message_id),
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": output,
            "usage": _usage(answer.usage),
        }

    def sent_calls(self, answer: Answer) -> Sequence[IssuedCall]:
        """See ``ResponseBuilder.sent_calls``: tools of one string get that string only."""
        return [to_sent_call(call, self.tools) for call in answer.calls]

    def open_stream(self, request: TurnRequest, message_id: str, prompt_tokens: int) -> bytes:
        """Frame the two opening events, each with the response without its output."""
        response = _empty_response(request.model, message_id)
        kinds = ("response.created", "response.in_progress")
        return _frame([{"type": kind, "response": response} for kind in kinds], first=0)

    def complete_stream(self, body: dict[str, Any]) -> bytes:
        """Frame every item, then the whole response."""
        events: list[Event] = []
        for index, item in enumerate(body["output"]):
            events += ({**partial, "output_index": index} for partial in _item_events(item))
        events.append({"type": f"response.{body['status']}", "response": body})
        return _frame(events, first=_OPENING_EVENTS)

    def fail_stream(self, refused: Refused, request: TurnRequest, message_id: str) -> bytes:
        """Frame ``response.failed``. Codex retries unless the code names a fault of the request."""
        _, envelope = openai.error_response(refused)
        error = envelope["error"]
        failed = {
            **_empty_response(request.model, message_id),
            "status": "failed",
            "error": {"code": error["code"] or "invalid_prompt", "message": error["message"]},
        }
        return _frame([{"type": "response.failed", "response": failed}], first=_OPENING_EVENTS)


def _frame(events: list[Event], *, first: int) -> bytes:
    return b"".join(
        frame_event({**one, "sequence_number": number}) for number, one in enumerate(events, first)
    )


def _empty_response(model: str, message_id: str) -> dict[str, Any]:
    return {
        "id": message_id,
        "object": "response",
        "created_at": openai.created_at(message_id),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
        "metadata": {},
    }


def _reasoning(item_id: str, thinking: str) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "id": item_id,
        "summary": [],
        "content": [{"type": "reasoning_text", "text": thinking}],
        "encrypted_content": None,
    }


def _message(item_id: str, text: str, status: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": item_id,
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    """Return the usage as OpenAI counts it. Reasoning tokens are not counted apart: 0."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage["cached_tokens"]},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"],
    }


def _item_events(item: dict[str, Any]) -> Iterator[Event]:
    """Return the events of an item: added without content, its content, done."""
    empty = {key: value for key, value in item.items() if key != "status"}
    if "status" in item:
        empty["status"] = "in_progress"
    match item["type"]:
        case "message" | "reasoning":
            (part,) = item["content"]
            yield _added({**empty, "content": []})
            yield from _part_events(item["id"], part)
        case "function_call":
            yield _added({**empty, "arguments": ""})
            yield from _string_events("function_call_arguments", item, "arguments")
        case "custom_tool_call":
            yield _added({**empty, "input": ""})
            yield from _string_events("custom_tool_call_input", item, "input")
        case _:
            yield _added(empty)
    yield {"type": "response.output_item.done", "item": item}


def _added(item: dict[str, Any]) -> Event:
    return {"type": "response.output_item.added", "item": item}


def _part_events(item_id: str, part: dict[str, Any]) -> Iterator[Event]:
    place = {"item_id": item_id, "content_index": 0}
    logprobs: Event = {"logprobs": []} if part["type"] == "output_text" else {}
    kind = f"response.{part['type']}"
    empty = {**part, "text": ""}
    yield {"type": "response.content_part.added", **place, "part": empty}
    yield {"type": f"{kind}.delta", **place, "delta": part["text"], **logprobs}
    yield {"type": f"{kind}.done", **place, "text": part["text"], **logprobs}
    yield {"type": "response.content_part.done", **place, "part": part}


def _string_events(name: str, item: dict[str, Any], field: str) -> Iterator[Event]:
    place = {"item_id": item["id"]}
    yield {"type": f"response.{name}.delta", **place, "delta": item[field]}
    yield {"type": f"response.{name}.done", **place, field: item[field]}
