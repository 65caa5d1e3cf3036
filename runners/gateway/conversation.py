"""A conversation as every dialect says it: pieces in, renderer messages and answers out.

A piece is the smallest thing a client repeats unchanged (one text, one tool result, one tool call).
Clients regroup pieces into messages, flip between strings and lists, and move cache marks; pieces
do not change by that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from typing import Any, Literal

import orjson

from runners.engines.contract import Generation
from runners.gateway.attribution import RequestAttribution
from runners.gateway.tokenizer import ParsedResponse

Role = Literal["system", "user", "assistant"]
PieceKind = Literal["text", "thinking", "tool_call", "tool_result"]
StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"]

SYSTEM_PROMPT = -1
"""Message index of the system prompt, which stands outside the messages."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One text, thought, tool call or tool result."""

    message: int
    """Index of the client's message it stood in."""
    role: Role
    kind: PieceKind
    text: str = ""
    """Text, thought, or result."""
    tool_id: str = ""
    """Of a call or a result."""
    name: str = ""
    """Tool name of a call."""
    arguments: dict[str, Any] = field(default_factory=dict)
    is_error: bool = False

    def key(self) -> bytes:
        """Return a digest of all but ``message``."""
        head = f"{self.role}\0{self.kind}\0{self.tool_id}\0{self.name}\0{self.is_error:d}\0"
        whole = (head + self.text).encode()
        if self.arguments:
            whole += _canonical(self.arguments)
        return blake2b(whole, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request for a turn, free of its dialect."""

    model: str
    """The name the client gave the model; echoed, never obeyed."""
    pieces: tuple[Piece, ...]
    tools: list[dict[str, Any]]
    """In the OpenAI envelope, as renderers take them."""
    max_tokens: int
    stop: tuple[str, ...] = ()
    show_thinking: bool = False
    ignored: tuple[str, ...] = ()
    """Sampling the client asked for; the campaign decides that."""
    hints: RequestAttribution = field(default_factory=RequestAttribution)
    structured: bool = False
    """The client wants JSON of a schema of its own: a title, a topic, a verdict."""

    def keys(self) -> list[bytes]:
        """Return the pieces' digests, in order."""
        return [piece.key() for piece in self.pieces]


def fingerprint(request: TurnRequest, keys: Iterable[bytes], dialect: str) -> bytes:
    """Return a digest of the dialect, the thread and everything that decides the answer: a retry
    has the same one, and parallel sub-agents with the same task do not.
    """
    digest = blake2b(b"".join(keys), digest_size=16)
    digest.update(f"{dialect}\0{request.hints.thread}\0".encode())
    digest.update(_canonical([request.tools, request.max_tokens, request.stop]))
    return digest.digest()


def _canonical(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return json.dumps(value, sort_keys=True).encode()


def group_messages(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """Group pieces into the messages a renderer takes: system, user, assistant, and one ``tool``
    per result.
    """
    messages: list[dict[str, Any]] = []
    for (_, role, is_result), group in groupby(pieces, _same_message):
        members = list(group)
        if is_result:
            messages.extend(
                {"role": "tool", "tool_call_id": piece.tool_id, "content": _result_text(piece)}
                for piece in members
            )
        elif role == "assistant":
            messages.append(_assistant_message(members))
        else:
            messages.append({"role": role, "content": "\n".join(piece.text for piece in members)})
    return messages


def _same_message(piece: Piece) -> tuple[int, Role, bool]:
    return piece.message, piece.role, piece.kind == "tool_result"


def _result_text(piece: Piece) -> str:
    return f"Error: {piece.text}" if piece.is_error else piece.text


def _assistant_message(pieces: list[Piece]) -> dict[str, Any]:
    texts = {
        kind: "\n".join(piece.text for piece in pieces if piece.kind == kind)
        for kind in ("text", "thinking")
    }
    message: dict[str, Any] = {"role": "assistant", "content": texts["text"]}
    if texts["thinking"]:
        message["reasoning_content"] = texts["thinking"]
    calls = [
        {
            "type": "function",
            "id": piece.tool_id,
            "function": {"name": piece.name, "arguments": piece.arguments},
        }
        for piece in pieces
        if piece.kind == "tool_call"
    ]
    if calls:
        message["tool_calls"] = calls
    return message


@dataclass(frozen=True, slots=True)
class IssuedCall:
    """A tool call of the policy."""

    id: str
    """Issued here, and how the turn is recognised when it comes back."""
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy said, free of dialect."""

    thinking: str
    text: str
    """Malformed tool calls stand in it as the policy wrote them."""
    calls: tuple[IssuedCall, ...]
    malformed_calls: int
    stop_reason: StopReason
    stop_sequence: str | None
    usage: dict[str, int]
    """prompt_tokens, completion_tokens, cached_tokens."""


def to_chat_message(answer: Answer) -> dict[str, Any]:
    """Return an answer as a chat message, as it is stored."""
    reply: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.thinking:
        reply["reasoning_content"] = answer.thinking
    if answer.calls:
        reply["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return reply


@dataclass(frozen=True, slots=True)
class UnparsedOutput:
    """An output that could not be parsed at all: one malformed call, in full."""

    raw: str
    content: str = ""
    reasoning_content: str | None = None
    name: str | None = None
    arguments: dict[str, Any] | str | None = None
    status: str = "unparsed"

    @property
    def tool_calls(self) -> Sequence[UnparsedOutput]:
        """The attempt."""
        return (self,)


_READABLE = ("ok", "unknown_tool")
"""Parse statuses of calls that the agent can judge; a tool it does not have is its own to refuse.
"""


def _is_serializable(call: list[Any]) -> bool:
    """Whether the client can be given the call: lone surrogates, huge integers and deep nesting
    cannot be.
    """
    try:
        orjson.dumps(call)
    except orjson.JSONEncodeError:
        return False
    return True


def read_answer(
    parsed: ParsedResponse, generation: Generation, new_id: Callable[[], str]
) -> Answer:
    """Turn a parsed generation into an answer; ``new_id`` issues the id of a tool call."""
    calls: list[IssuedCall] = []
    malformed: list[str] = []
    for call in parsed.tool_calls:
        if (
            call.status in _READABLE
            and call.name
            and isinstance(call.arguments, dict)
            and _is_serializable([call.name, call.arguments])
        ):
            calls.append(IssuedCall(new_id(), call.name, call.arguments))
        else:
            malformed.append(call.raw)
    text = parsed.content
    stop = generation.matched if isinstance(generation.matched, str) else None
    if stop and stop in text:  # the engine keeps what it stopped at; the client never sees it
        text = text[: text.rindex(stop)]
    reason: StopReason = "end_turn"
    if calls:
        reason = "tool_use"
    elif generation.finish_reason == "length":
        reason = "max_tokens"
    elif stop is not None:
        reason = "stop_sequence"
    return Answer(
        thinking=parsed.reasoning_content or "",
        text="\n".join(part for part in (text, *malformed) if part),
        calls=tuple(calls),
        malformed_calls=len(malformed),
        stop_reason=reason,
        stop_sequence=stop if reason == "stop_sequence" else None,
        usage={
            "prompt_tokens": generation.prompt_tokens,
            "completion_tokens": len(generation.output_ids),
            "cached_tokens": generation.cached_tokens,
        },
    )
