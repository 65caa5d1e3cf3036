"""Clients of three APIs: a neutral request becomes a body, and an answer what the program received.

What a gateway answers is read as programs read it, and whatever cannot be read so is a GatewayFault
that says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl.referee.conversation import (
    GatewayFault,
    Message,
    NotOffered,
    PolicyCall,
    ProgramReply,
    ProgramRequest,
)
from agentrl.referee.http_client import post, quote, read_events, read_json

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
"""An image."""
MODEL = "policy"
_STOPS = {
    **dict.fromkeys(("end_turn", "stop_sequence", "stop", "completed"), "stop"),
    **dict.fromkeys(("tool_use", "tool_calls"), "calls"),
    **dict.fromkeys(("max_tokens", "length", "max_output_tokens"), "length"),
}


class ApiClient(Protocol):
    """The way in which a scenario reaches a gateway."""

    wire: str

    async def send(self, request: ProgramRequest, *, stream: bool) -> ProgramReply:
        """Return the answer. Raises NotOffered and GatewayFault."""


@dataclass(frozen=True, slots=True)
class Api:
    """One of the three APIs."""

    path: str
    write: Callable[[ProgramRequest], dict[str, Any]]
    read: Callable[[Any], ProgramReply]
    join: Callable[[Sequence[Any]], Any]
    """Makes of a stream's events the body that would have been answered without it."""


@dataclass(slots=True)
class HttpClient:
    """A client of one API, with the key of one session."""

    wire: str
    url: str
    headers: Mapping[str, str]
    timeout_s: float = 30.0
    _api: Api = field(init=False)

    def __post_init__(self) -> None:
        self._api = APIS[self.wire]
        self.url = self.url.rstrip("/").removesuffix("/v1")

    async def send(self, request: ProgramRequest, *, stream: bool) -> ProgramReply:
        """See ``ApiClient``."""
        body = self._api.write(request) | ({"stream": True} if stream else {})
        raw = _dump(body, plain=request.plain_json)
        answer, kind = await post(self.url + self._api.path, raw, self.headers, self.timeout_s)
        if stream and kind != "text/event-stream":
            raise GatewayFault(f"a stream was asked for, and {kind} came: {quote(answer)}", 200)
        try:
            whole = self._api.join(list(read_events(answer))) if stream else read_json(answer)
            if isinstance(whole, dict) and whole.get("error"):
                raise GatewayFault(f"an error in the answer: {quote(_dump(whole['error']))}", 200)
            return self._api.read(whole)
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {str(error)[:100]}"
            raise GatewayFault(f"not as the API has it ({reason}): {quote(answer)}", 200) from error


def _dump(value: Any, *, plain: bool = True) -> bytes:
    # a lone surrogate of a Node program is an escape; so it is valid ASCII
    if plain:
        return json.dumps(value).encode()
    text = json.dumps(_reverse(value), indent=1, separators=(" ,", " : "))
    return text.replace("z", "\\u007a").encode()  # in no literal and no escape of JSON


def _reverse(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reverse(value[key]) for key in reversed(value)}
    return [_reverse(part) for part in value] if isinstance(value, list) else value


def _read_call(name: Any, arguments: Any, call_id: Any) -> PolicyCall:
    """Return a call whose arguments came as a text, or as an object."""
    if isinstance(arguments, str):
        try:
            found = json.loads(arguments or "{}")
        except (RecursionError, ValueError):
            found = arguments
        arguments = found if isinstance(found, dict) else arguments
    return PolicyCall(_text(name), arguments, _text(call_id))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, not {value!r:.50}")
    return value


def _arguments(call: PolicyCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


# --- Anthropic Messages ---------------------------------------------------------------------------


def _write_messages(request: ProgramRequest) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for message in request.history:
        if message.role == "system":
            raise NotOffered("a system message inside of a conversation")
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        merges = (
            rows and rows[-1]["role"] == role == "user" and isinstance(rows[-1]["content"], list)
        )
        if merges and (message.role == "tool" or rows[-1]["content"][-1]["type"] == "tool_result"):
            rows[-1]["content"] += blocks  # results, and what is said beside them, are one message
        elif not message.is_list and len(blocks) == 1 and "text" in blocks[0]:
            rows.append({"role": role, "content": blocks[0]["text"]})
        else:
            rows.append({"role": role, "content": blocks})
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": request.max_tokens,
        "messages": rows,
        "system": [{"type": "text", "text": request.system}],
    }
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
            for tool in request.tools
        ]
    return body


def _blocks(message: Message) -> list[dict[str, Any]]:
    texts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in message.texts]
    blocks = texts
    if message.image:
        source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
        blocks = [*texts, {"type": "image", "source": source}]
    if message.role == "tool":
        content: Any = blocks if message.is_list else message.text
        blocks = [{"type": "tool_result", "tool_use_id": message.call_id, "content": content}]
    if message.role == "assistant":
        thoughts = [message.native] if message.native else []
        if message.thought and not thoughts:
            thoughts = [{"type": "thinking", "thinking": message.thought, "signature": ""}]
        used = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
            for call in message.calls
        ]
        blocks = [*thoughts, *blocks, *used]
    if message.marked and blocks:
        blocks[-1]["cache_control"] = {"type": "ephemeral"}
    return blocks


def _read_message(body: Any) -> ProgramReply:
    texts, calls, thought, native = [], [], "", None
    for block in body["content"]:
        match block["type"]:
            case "text":
                texts.append(_text(block["text"]))
            case "thinking":
                thought, native = thought + _text(block["thinking"]), block
            case "redacted_thinking":
                native = block
            case "tool_use":
                calls.append(_read_call(block["name"], block["input"], block["id"]))
            case kind:
                raise ValueError(f"a block of type {kind}")
    return ProgramReply(tuple(texts), tuple(calls), thought, _stop(body["stop_reason"]), native)


def _join_messages(events: Sequence[Any]) -> Any:
    body: dict[str, Any] = {}
    pieces: dict[int, str] = {}
    ended = False
    for event in events:
        match event["type"]:
            case "error":
                return {"error": event["error"]}
            case "message_start":
                body = {**event["message"], "content": []}
            case "content_block_start":
                body["content"].append(dict(event["content_block"]))
            case "content_block_delta":
                delta, at = event["delta"], event["index"]
                key = {"text_delta": "text", "thinking_delta": "thinking"}.get(delta["type"])
                if delta["type"] == "input_json_delta":
                    pieces[at] = pieces.get(at, "") + delta["partial_json"]
                elif delta["type"] == "signature_delta":
                    body["content"][at]["signature"] = delta["signature"]
                elif key is not None:
                    body["content"][at][key] += delta[key]
            case "message_delta":
                body |= event["delta"]
            case "message_stop":
                ended = True
    if not ended:
        raise GatewayFault("the stream ended without message_stop", 200)
    for at, text in pieces.items():
        body["content"][at]["input"] = text
    return body


# --- Chat Completions -----------------------------------------------------------------------------


def _write_chat(request: ProgramRequest) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [{"role": "system", "content": request.system}]
    for message in request.history:
        row: dict[str, Any] = {"role": message.role}
        content: Any = [{"type": "text", "text": text} for text in message.texts]
        if message.image:
            url = f"data:image/png;base64,{PIXEL}"
            content.append({"type": "image_url", "image_url": {"url": url}})
        if message.marked and content:
            content[-1]["cache_control"] = {"type": "ephemeral"}
        plain = message.role == "assistant" or not message.is_list
        row["content"] = message.text if plain and len(content) == len(message.texts) else content
        if message.role == "assistant":
            if not message.text and message.absent != "empty":
                row["content"] = None
                if message.absent == "left out":
                    del row["content"]
            if message.thought:
                row["reasoning_content"] = message.thought
            if message.calls:
                row["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": _arguments(call)},
                    }
                    for call in message.calls
                ]
        elif message.role == "tool":
            row["tool_call_id"] = message.call_id
        rows.append(row)
    body = {"model": MODEL, "max_completion_tokens": request.max_tokens, "messages": rows}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.schema,
                },
            }
            for tool in request.tools
        ]
    return body


def _read_chat(body: Any) -> ProgramReply:
    choice = body["choices"][0]
    message = choice["message"]
    text = message.get("content")
    calls = [
        _read_call(call["function"]["name"], _text(call["function"]["arguments"]), call["id"])
        for call in message.get("tool_calls") or ()
    ]
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    texts = (_text(text),) if text else ()
    return ProgramReply(texts, tuple(calls), _text(thought), _stop(choice["finish_reason"]))


def _join_chat(events: Sequence[Any]) -> Any:
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    calls: dict[int, dict[str, Any]] = {}
    finish = None
    for event in events:
        if event.get("error"):
            return event
        for choice in event["choices"]:
            delta = choice.get("delta") or {}
            message["content"] += delta.get("content") or ""
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            message["reasoning_content"] += thought
            for call in delta.get("tool_calls") or ():
                known = calls.setdefault(
                    call["index"], {"id": "", "function": {"name": "", "arguments": ""}}
                )
                known["id"] = call.get("id") or known["id"]
                function = call.get("function") or {}
                known["function"]["name"] += function.get("name") or ""
                known["function"]["arguments"] += function.get("arguments") or ""
            finish = choice.get("finish_reason") or finish
    if finish is None:
        raise GatewayFault("the stream ended without a finish_reason", 200)
    message["tool_calls"] = list(calls.values())
    return {"choices": [{"message": message, "finish_reason": finish}]}


# --- Responses ------------------------------------------------------------------------------------


def _write_responses(request: ProgramRequest) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for message in request.history:
        if message.role == "tool":
            content: Any = [{"type": "input_text", "text": text} for text in message.texts]
            items.append(
                {
                    "type": "function_call_output",
                    "call_id": message.call_id,
                    "output": content if message.is_list else message.text,
                }
            )
            continue
        if message.role == "assistant":
            if message.native:
                items.append(message.native)
            elif message.thought:
                summary = [{"type": "summary_text", "text": message.thought}]
                items.append({"type": "reasoning", "id": "rs_own", "summary": summary})
        kind = "output_text" if message.role == "assistant" else "input_text"
        content = [{"type": kind, "text": text} for text in message.texts]
        if message.image:
            url = f"data:image/png;base64,{PIXEL}"
            content.append({"type": "input_image", "image_url": url})
        role = "developer" if message.role == "system" else message.role
        if content:
            plain = not message.is_list and len(content) == len(message.texts) == 1
            row = {"type": "message", "role": role, "content": message.text if plain else content}
            items.append(row)
        items += [
            {
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": _arguments(call),
            }
            for call in message.calls
        ]
    body = {
        "model": MODEL,
        "instructions": request.system,
        "input": items,
        "max_output_tokens": request.max_tokens,
        "store": False,
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.schema,
                "strict": False,
            }
            for tool in request.tools
        ]
    return body


def _read_response(body: Any) -> ProgramReply:
    texts, calls, thought, native = [], [], "", None
    for item in body["output"]:
        match item["type"]:
            case "message":
                texts += [_text(part["text"]) for part in item["content"]]
            case "function_call":
                calls.append(_read_call(item["name"], _text(item["arguments"]), item["call_id"]))
            case "reasoning":
                parts = [*(item.get("content") or ()), *(item.get("summary") or ())]
                thought, native = "".join(_text(part["text"]) for part in parts), item
            case kind:
                raise ValueError(f"an item of type {kind}")
    stop = body["status"]
    if stop == "incomplete":
        stop = (body.get("incomplete_details") or {}).get("reason", stop)
    found = _stop(stop)
    found = "calls" if calls and found == "stop" else found
    return ProgramReply(tuple(text for text in texts if text), tuple(calls), thought, found, native)


def _join_responses(events: Sequence[Any]) -> Any:
    items: dict[int, Any] = {}
    for event in events:
        match event["type"]:
            case "response.output_item.done":
                items[event["output_index"]] = event["item"]
            case "response.completed" | "response.incomplete":
                # the SDKs' parsers read items; programs read either
                return {**event["response"], "output": [items[at] for at in sorted(items)]}
            case "response.failed":
                return {"error": event["response"].get("error") or "response.failed"}
            case "error":
                return {"error": event}
    raise GatewayFault("the stream ended without response.completed", 200)


def _stop(value: Any) -> str:
    return _STOPS.get(value, str(value))


APIS: Mapping[str, Api] = {
    "anthropic": Api("/v1/messages", _write_messages, _read_message, _join_messages),
    "chat": Api("/v1/chat/completions", _write_chat, _read_chat, _join_chat),
    "responses": Api("/v1/responses", _write_responses, _read_response, _join_responses),
}
