"""Clients of four APIs: a neutral request becomes a body, and an answer what the program received.

An API is an entry in ``APIS``: how a request is written, how an answer is read, and how the events
of a stream make that answer. What cannot be read as programs read it is a GatewayFault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from agentrl.referee.conversation import (
    GatewayFault,
    Message,
    NotOffered,
    PolicyCall,
    ProgramRequest,
    Tool,
)

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
PIXEL_URL = f"data:image/png;base64,{PIXEL}"
MODEL, MAX_TOKENS = "policy", 4000
TIMEOUT_S = 60.0
"""Deadline of a request."""
BODY_MB = 32
"""The largest answer that is read."""
SHOWN = 300
"""Characters of an answer that a message quotes."""
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
_STOPS = {
    **dict.fromkeys(("end_turn", "stop_sequence", "stop", "completed", "STOP"), "stop"),
    **dict.fromkeys(("tool_use", "tool_calls"), "calls"),
    **dict.fromkeys(("max_tokens", "length", "max_output_tokens", "MAX_TOKENS"), "length"),
}


class ApiClient(Protocol):
    """The way in which a scenario reaches a gateway."""

    async def send(self, request: ProgramRequest, *, stream: bool) -> Message:
        """Return the answer. Raises NotOffered and GatewayFault."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API; each function may raise whatever the structure of a wrong answer makes it raise."""

    path: str
    write: Callable[[ProgramRequest], dict[str, Any]]
    read: Callable[[Any], Message]
    join: Callable[[Sequence[Any]], Any]
    """Makes of a stream's events the body that would have been answered without it."""
    stream_path: str = ""
    """Path of streams; "": they are asked for at ``path``, by a member of the body."""


@dataclass(frozen=True, slots=True)
class HttpClient:
    """A client of one API, with the key of one session."""

    wire: str
    url: str
    headers: Mapping[str, str]
    timeout_s: float = TIMEOUT_S

    async def send(self, request: ProgramRequest, *, stream: bool) -> Message:
        """See ``ApiClient``."""
        api = APIS[self.wire]
        # an API refuses an empty list of tools
        body = {key: value for key, value in api.write(request).items() if value != []}
        if stream and not api.stream_path:
            body["stream"] = True
        path = (stream and api.stream_path) or api.path
        url = self.url.rstrip("/").removesuffix("/v1") + path
        raw = _dump(body, plain=request.plain_json)
        answer, kind = await post(url, raw, self.headers, self.timeout_s)
        if stream and kind != "text/event-stream":
            raise GatewayFault(f"a stream was asked for, and {kind} came: {quote(answer)}", 200)
        try:
            whole = api.join(list(read_events(answer))) if stream else json.loads(answer)
            if isinstance(whole, dict) and whole.get("error"):
                raise GatewayFault(f"an error in the answer: {quote(_dump(whole['error']))}", 200)
            return api.read(whole)
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


# --- requests to a gateway that may do anything: hang, cut, lie, or send without end --------------


async def post(
    url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
) -> tuple[bytes, str]:
    """Return the body and the content type of an answer 200; raises GatewayFault."""
    timeout, headers = aiohttp.ClientTimeout(total=timeout_s), {**headers, **_HEADERS}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as http,
            http.post(url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            whole = b""
            async for chunk in response.content.iter_chunked(2**16):
                whole += chunk
                if len(whole) > BODY_MB * 2**20:
                    raise GatewayFault(f"an answer of over {BODY_MB} MB", response.status)
            if response.status != 200:
                raise GatewayFault(f"HTTP {response.status}: {quote(whole)}", response.status)
            return whole, response.content_type
    except TimeoutError as error:
        raise GatewayFault(f"no answer within {timeout_s:g} s") from error
    except (aiohttp.ClientError, OSError, TypeError, ValueError) as error:
        raise GatewayFault(f"the connection failed: {error!r:.{SHOWN}}") from error


def quote(body: bytes) -> str:
    """Return the beginning of a body as a text that a message can hold."""
    text = " ".join(body[: 4 * SHOWN].decode("utf-8", "replace").split())
    return text[:SHOWN] or "(nothing)"


def read_events(body: bytes) -> Iterator[Any]:
    """Yield the JSON of each event of a stream, but for its ``[DONE]``; raises ValueError."""
    for frame in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [
            line[5:].removeprefix(b" ") for line in frame.split(b"\n") if line.startswith(b"data:")
        ]
        if lines and (data := b"\n".join(lines)).strip() != b"[DONE]":
            yield json.loads(data)


# --- what the APIs share --------------------------------------------------------------------------


def _blocks(message: Message, kind: str, image: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a message's content."""
    blocks: list[dict[str, Any]] = [{"type": kind, "text": text} for text in message.texts]
    if message.marked and blocks and kind == "text":
        blocks[-1]["cache_control"] = {"type": "ephemeral"}
    return [*blocks, dict(image)] if message.image else blocks


def _shape(message: Message, blocks: list[dict[str, Any]]) -> Any:
    """Return a content as a list, or as one text."""
    is_one = len(blocks) == 1 and "text" in blocks[0]
    return message.text if is_one and not message.is_list else blocks


def _write_tool(tool: Tool, schema: str) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, schema: tool.schema}


def _write_call(call: PolicyCall) -> dict[str, str]:
    is_text = isinstance(call.arguments, str)
    arguments = call.arguments if is_text else json.dumps(call.arguments)
    return {"name": call.name, "arguments": arguments}


def _answer(
    texts: Sequence[str], calls: Sequence[PolicyCall], thought: str, stop: Any, native: Any = None
) -> Message:
    """Return an answer; ``stop``: the API's own word."""
    stop = _STOPS.get(stop, str(stop))
    return Message(
        "assistant", tuple(texts), tuple(calls), _text(thought), native=native, stop=stop
    )


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


def _merge(known: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a piece of a stream: texts grow, and the rows of a list are known by ``index``."""
    for key, value in delta.items():
        if isinstance(value, list):
            rows = known.setdefault(key, [])
            for row in value:
                found = next((old for old in rows if old.get("index") == row.get("index")), None)
                if found is None:
                    rows.append(found := {})
                _merge(found, row)
        elif isinstance(value, dict):
            _merge(known.setdefault(key, {}), value)
        elif isinstance(value, str) and key not in ("id", "type", "role", "finish_reason"):
            known[key] = (known.get(key) or "") + value
        elif value is not None:
            known[key] = value


# --- Anthropic Messages ---------------------------------------------------------------------------


def _write_messages(request: ProgramRequest) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for message in request.history:
        if message.role == "system":
            raise NotOffered("a system message inside of a conversation")
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _write_blocks(message)
        last = rows[-1]["content"] if rows and rows[-1]["role"] == role == "user" else None
        if isinstance(last, list) and "tool_result" in (blocks[0]["type"], last[-1]["type"]):
            last += blocks  # results, and what is said beside them, are one message
        else:
            rows.append({"role": role, "content": _shape(message, blocks)})
    return {
        "model": MODEL,
        "max_tokens": MAX_TOKENS,
        "messages": rows,
        "system": [{"type": "text", "text": request.system}],
        "tools": [_write_tool(tool, "input_schema") for tool in request.tools],
    }


def _write_blocks(message: Message) -> list[dict[str, Any]]:
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    blocks = _blocks(message, "text", {"type": "image", "source": source})
    if message.role == "tool":
        content = _shape(message, blocks)
        blocks = [{"type": "tool_result", "tool_use_id": message.call_id, "content": content}]
    if message.role == "assistant":
        own = {"type": "thinking", "thinking": message.thought, "signature": ""}
        used = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
            for call in message.calls
        ]
        thought = message.native or (own if message.thought else None)
        blocks = [*([thought] if thought else []), *blocks, *used]
    return blocks


def _read_message(body: Any) -> Message:
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
    return _answer(texts, calls, thought, body["stop_reason"], native)


def _join_messages(events: Sequence[Any]) -> Any:
    body: dict[str, Any] = {}
    for event in events:
        match event["type"]:
            case "error":
                return {"error": event["error"]}
            case "message_start":
                body = {**event["message"], "content": []}
            case "content_block_start":
                body["content"].append(dict(event["content_block"]))
            case "content_block_delta":
                _merge(body["content"][event["index"]], {**event["delta"], "type": None})
            case "message_delta":
                body |= event["delta"]
            case "message_stop":
                for block in body["content"]:
                    if "partial_json" in block:
                        block["input"] = block.pop("partial_json")
                return body
    raise GatewayFault("the stream ended without message_stop", 200)


# --- Chat Completions -----------------------------------------------------------------------------


def _write_chat(request: ProgramRequest) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [{"role": "system", "content": request.system}]
    for message in request.history:
        blocks = _blocks(message, "text", {"type": "image_url", "image_url": {"url": PIXEL_URL}})
        row: dict[str, Any] = {"role": message.role, "content": _shape(message, blocks)}
        if message.role == "assistant":
            row["content"] = message.text or (None if message.absent == "null" else "")
            if not message.text and message.absent == "left out":
                del row["content"]
            if message.thought:
                row["reasoning_content"] = message.thought
            if message.calls:
                row["tool_calls"] = [
                    {"id": call.id, "type": "function", "function": _write_call(call)}
                    for call in message.calls
                ]
        elif message.role == "tool":
            row["tool_call_id"] = message.call_id
        rows.append(row)
    return {
        "model": MODEL,
        "max_completion_tokens": MAX_TOKENS,
        "messages": rows,
        "tools": [
            {"type": "function", "function": _write_tool(tool, "parameters")}
            for tool in request.tools
        ],
    }


def _read_chat(body: Any) -> Message:
    choice = body["choices"][0]
    message = choice["message"]
    calls = [
        _read_call(call["function"]["name"], call["function"].get("arguments") or "", call["id"])
        for call in message.get("tool_calls") or ()
    ]
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    text = _text(message.get("content") or "")
    return _answer([text] if text else [], calls, thought, choice["finish_reason"])


def _join_chat(events: Sequence[Any]) -> Any:
    choice: dict[str, Any] = {"delta": {}}
    for event in events:
        if event.get("error"):
            return event
        for piece in event["choices"]:
            _merge(choice, piece)
    if choice.get("finish_reason") is None:
        raise GatewayFault("the stream ended without a finish_reason", 200)
    return {"choices": [{**choice, "message": choice["delta"]}]}


# --- Responses ------------------------------------------------------------------------------------


def _write_responses(request: ProgramRequest) -> dict[str, Any]:
    return {
        "model": MODEL,
        "instructions": request.system,
        "input": [item for message in request.history for item in _write_items(message)],
        "max_output_tokens": MAX_TOKENS,
        "store": False,
        "tools": [
            {"type": "function", "strict": False, **_write_tool(tool, "parameters")}
            for tool in request.tools
        ],
    }


def _write_items(message: Message) -> list[dict[str, Any]]:
    kind = "output_text" if message.role == "assistant" else "input_text"
    blocks = _blocks(message, kind, {"type": "input_image", "image_url": PIXEL_URL})
    content = _shape(message, blocks)
    if message.role == "tool":
        output = {"type": "function_call_output", "call_id": message.call_id, "output": content}
        return [output]
    items: list[dict[str, Any]] = [message.native] if message.native else []
    if message.thought and not items:
        summary = [{"type": "summary_text", "text": message.thought}]
        items = [{"type": "reasoning", "id": "rs_own", "summary": summary}]
    if content:
        role = "developer" if message.role == "system" else message.role
        items.append({"type": "message", "role": role, "content": content})
    return items + [
        {"type": "function_call", "call_id": call.id, **_write_call(call)} for call in message.calls
    ]


def _read_response(body: Any) -> Message:
    texts, calls, thought, native = [], [], "", None
    for item in body["output"]:
        match item["type"]:
            case "message":
                texts += [_text(part["text"]) for part in item["content"] if part["text"] != ""]
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
    stop = "tool_calls" if calls and stop == "completed" else stop
    return _answer(texts, calls, thought, stop, native)


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


# --- Google's generateContent ---------------------------------------------------------------------


def _write_google(request: ProgramRequest) -> dict[str, Any]:
    contents: list[dict[str, Any]] = []
    names = {call.id: call.name for message in request.history for call in message.calls}
    for message in request.history:
        if message.role == "system":
            raise NotOffered("a system message inside of a conversation")
        parts = _write_parts(message, names.get(message.call_id, message.call_id))
        role = "model" if message.role == "assistant" else "user"
        last = contents[-1] if contents else None
        if last and last["role"] == role and "functionResponse" in {*parts[0], *last["parts"][-1]}:
            last["parts"] += parts  # results, and what is said beside them, are one content
        else:
            contents.append({"role": role, "parts": parts})
    tools = [_write_tool(tool, "parametersJsonSchema") for tool in request.tools]
    return {
        "systemInstruction": {"parts": [{"text": request.system}]},
        "contents": contents,
        "tools": [{"functionDeclarations": tools}] if tools else [],
        "generationConfig": {
            "maxOutputTokens": MAX_TOKENS,
            "thinkingConfig": {"includeThoughts": True},
        },
    }


def _write_parts(message: Message, name: str) -> list[dict[str, Any]]:
    """Return the parts of a content; ``name``: of the call that a result answers."""
    parts: list[dict[str, Any]] = [{"text": text} for text in message.texts]
    if message.role == "tool":
        response = {"id": message.call_id, "name": name, "response": {"output": message.text}}
        parts = [{"functionResponse": response}]
    if message.image:
        parts.append({"inlineData": {"mimeType": "image/png", "data": PIXEL}})
    if message.thought:
        parts.insert(0, {"text": message.thought, "thought": True})
    for call in message.calls:
        if not isinstance(call.arguments, dict):
            raise NotOffered("arguments that are no object")
        made = {"id": call.id, "name": call.name, "args": call.arguments}
        parts.append({"functionCall": made, "thoughtSignature": "c2ln"})
    return parts or [{"text": ""}]


def _read_google(body: Any) -> Message:
    candidate = body["candidates"][0]
    texts, calls, thought = [], [], ""
    for part in candidate["content"]["parts"]:
        if call := part.get("functionCall"):
            calls.append(_read_call(call["name"], call["args"], call["id"]))
        elif part.get("thought"):
            thought += _text(part["text"])
        elif part["text"]:
            texts.append(_text(part["text"]))
    stop = candidate["finishReason"]
    return _answer(texts, calls, thought, "tool_calls" if calls and stop == "STOP" else stop)


def _join_google(events: Sequence[Any]) -> Any:
    parts: list[Any] = []
    for event in events:
        if event.get("error"):
            return event
        candidate = event["candidates"][0]
        parts += candidate.get("content", {}).get("parts", ())
        if reason := candidate.get("finishReason"):
            return {"candidates": [{"content": {"parts": parts}, "finishReason": reason}]}
    raise GatewayFault("the stream ended without a finishReason", 200)


_GOOGLE = f"/v1beta/models/{MODEL}:"

APIS: Mapping[str, Api] = {
    "anthropic": Api("/v1/messages", _write_messages, _read_message, _join_messages),
    "chat": Api("/v1/chat/completions", _write_chat, _read_chat, _join_chat),
    "responses": Api("/v1/responses", _write_responses, _read_response, _join_responses),
    "google": Api(
        *(f"{_GOOGLE}generateContent", _write_google, _read_google, _join_google),
        stream_path=f"{_GOOGLE}streamGenerateContent?alt=sse",
    ),
}
