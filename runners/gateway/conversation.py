"""Requests and answers free of their dialect: pieces in, renderer messages and answers out.

A piece is the smallest thing that a client repeats unchanged: one text, one tool result, one tool
call. Between two requests clients regroup pieces into other messages, exchange strings and lists of
one block, and move cache marks; the pieces, and so their digests, stay the same.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from typing import Any, Literal

import orjson

from runners.engines.contract import Generation, TextReply
from runners.gateway.request_limits import bound_shape
from runners.records.record import MAIN_THREAD
from runners.records.tokenizer import ParsedResponse, ToolCall

Role = Literal["system", "user", "assistant"]
PieceKind = Literal["text", "thinking", "tool_call", "tool_result"]
StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence"]
RequestClass = Literal["main", "subagent", "compaction", "side"]

MAX_NESTING = 64
"""Of a call: each later request has it in its history, and ``gateway.limits.json_depth`` holds."""
CONTENT_BYTES = 16
"""Length of a piece's digest without its id."""
SYSTEM_PROMPT = -1
"""Message index of the system prompt, which stands outside the messages."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One text, thought, tool call or tool result."""

    message: int
    """Index of the client's message that it was in."""
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
    references: tuple[str, ...] = ()
    """Tools that a result makes known: their schemas are shown behind ``reference_text``."""
    note: str = field(default="", compare=False)
    """Type of the content that its text stands for, where the policy cannot be shown that."""
    key: bytes = field(default=b"", compare=False, repr=False)
    """Its digest, where it has been made."""

    @property
    def is_empty(self) -> bool:
        """True if no model would see it."""
        return not self.text and self.kind in ("text", "thinking")

    def digest(self) -> bytes:
        """Return ``CONTENT_BYTES`` that are the same whatever message the piece is in, and whatever
        the id of a call is, which 8 more bytes stand for.
        """
        if self.key:
            return self.key
        head = f"{self.role}\0{self.kind}\0{self.name}\0{self.is_error:d}\0"
        whole = (head + self.text).encode()
        if self.arguments:
            whole += _canonical(self.arguments)
        content = blake2b(whole, digest_size=CONTENT_BYTES).digest()
        if not self.tool_id:
            return content
        return content + blake2b(self.tool_id.encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class RequestAttribution:
    """The place of a request in its session, as far as the agent program names it.

    A thread is one line of work inside a session: the main agent, or one sub-agent. Programs that
    name their threads are believed; a request that names none belongs to the main thread.
    """

    thread: str = MAIN_THREAD
    """The program's own id of the thread, e.g. Claude Code's ``x-claude-code-agent-id``."""
    parent: str | None = None
    """The program's id of the thread that dispatched it; None, or an id that no thread of the
    session has: the main thread did.
    """
    agent_type: str | None = None
    """The program's name for this kind of agent, e.g. ``Explore``."""
    request_class: RequestClass | None = None
    """The request's purpose; None if the program does not state one."""
    compacted: bool = False
    """The program states that a summary replaced the history before this request."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request for a turn."""

    model: str
    """The client's name for the model: echoed in the answer, otherwise ignored."""
    pieces: Sequence[Piece]
    tools: list[dict[str, Any]]
    """In the OpenAI envelope, as renderers take them."""
    max_tokens: int
    stop: tuple[str, ...] = ()
    show_thinking: bool = False
    ignored: tuple[str, ...] = ()
    """Names of the client's keys that have no effect: settings that the campaign decides, and some
    of those that are unknown here.
    """
    unknown_keys: int = 0
    """Keys of the client that are unknown here."""
    replaced_surrogates: int = 0
    """Halves of characters in its body, and bytes that are no UTF-8."""
    attribution: RequestAttribution = field(default_factory=RequestAttribution)

    def digest_pieces(self, first: int = 0) -> list[bytes]:
        """Return the pieces' digests, in order, from one on. It is the costly part of recognising a
        request, so a session does it once and hands the list on.
        """
        return [piece.key or piece.digest() for piece in self.pieces[first:]]


def hash_keys(keys: Iterable[bytes], before: blake2b | None = None) -> blake2b:
    """Return the hash of pieces' digests, which go on from those that were hashed ``before``."""
    digest = blake2b(digest_size=16) if before is None else before.copy()
    digest.update(b"".join(keys))
    return digest


def fingerprint(request: TurnRequest, pieces: blake2b, dialect: str) -> bytes:
    """Return 16 bytes of the dialect, the thread and everything that decides the answer.

    A retry has the same fingerprint as the request that it repeats; parallel sub-agents with the
    same task have different ones, because their threads differ. ``pieces``: ``hash_keys`` of
    ``digest_pieces()``.
    """
    digest = pieces.copy()
    digest.update(f"{dialect}\0{request.attribution.thread}\0".encode())
    digest.update(_canonical([request.tools, request.max_tokens, request.stop]))
    return digest.digest()


def _canonical(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return json.dumps(value, sort_keys=True).encode()


def reference_text(name: str) -> str:
    """Return the text of a reference to a tool, as it stands in a piece."""
    return f"[tool {name} is available]"


def group_messages(
    pieces: Sequence[Piece], tools: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Group pieces into the chat messages that renderers take: system, user, assistant, and one
    ``tool`` message per result. ``tools`` are those to which results may refer; each is shown once.
    """
    messages: list[dict[str, Any]] = []
    known: dict[str, Mapping[str, Any]] | None = None
    for (_, role, is_result), group in groupby(pieces, _same_message):
        members = list(group)
        if is_result:
            for piece in members:
                text = _result_text(piece)
                if piece.references:
                    if known is None:
                        known = {tool["function"]["name"]: tool for tool in tools}
                    text = _show_tools(text, piece.references, known)
                messages.append({"role": "tool", "tool_call_id": piece.tool_id, "content": text})
        elif role == "assistant":
            messages.append(_assistant_message(members))
        else:
            messages.append({"role": role, "content": "\n".join(piece.text for piece in members)})
    return messages


def _same_message(piece: Piece) -> tuple[int, Role, bool]:
    return piece.message, piece.role, piece.kind == "tool_result"


def _result_text(piece: Piece) -> str:
    return f"Error: {piece.text}" if piece.is_error else piece.text


def _show_tools(text: str, names: Iterable[str], known: dict[str, Mapping[str, Any]]) -> str:
    """Return a text with the tools that it refers to; these are taken out of ``known``."""
    for name in names:
        tool = known.pop(name, None)
        if tool is not None:
            mark = reference_text(name)
            text = text.replace(mark, f"{mark}\n{_canonical(tool['function']).decode()}", 1)
    return text


def _assistant_message(pieces: list[Piece]) -> dict[str, Any]:
    def text(kind: PieceKind) -> str:
        return "\n".join(piece.text for piece in pieces if piece.kind == kind)

    calls = (
        IssuedCall(piece.tool_id, piece.name, piece.arguments)
        for piece in pieces
        if piece.kind == "tool_call"
    )
    return assistant_message(text("text"), text("thinking"), calls)


def assistant_message(text: str, thinking: str, calls: Iterable[IssuedCall]) -> dict[str, Any]:
    """Return an assistant's chat message, as renderers take it and as it is stored with a turn."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        message["reasoning_content"] = thinking
    tool_calls = [
        {
            "type": "function",
            "id": call.id,
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]
    if tool_calls:
        message["tool_calls"] = tool_calls
    return message


@dataclass(frozen=True, slots=True)
class IssuedCall:
    """A tool call of the policy, with the id that the gateway issued for it."""

    id: str
    """Unique; by it the turn is recognised when the client sends it back."""
    name: str
    arguments: dict[str, Any]


def sent_pieces(text: str, calls: Iterable[IssuedCall]) -> tuple[Piece, ...]:
    """Return the pieces of an answer as its client gets them, without thoughts."""
    said = [Piece(0, "assistant", "text", text)] if text else []
    return (
        *said,
        *(
            Piece(0, "assistant", "tool_call", tool_id=c.id, name=c.name, arguments=c.arguments)
            for c in calls
        ),
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """The policy's output, parsed."""

    thinking: str
    text: str
    """Includes malformed tool calls, as the policy wrote them."""
    calls: tuple[IssuedCall, ...]
    malformed_calls: int
    stop_reason: StopReason
    stop_sequence: str | None
    usage: dict[str, int]
    """prompt_tokens, completion_tokens, cached_tokens."""
    recovered: tuple[str, ...] = ()
    """Kinds of wrong mark-up of calls that were read all the same, one entry per call."""


def _is_serializable(call: list[Any]) -> bool:
    """Return whether a call can be sent as JSON that every client reads; lone surrogates, integers
    beyond 64 bits, numbers that are none and deep nesting, all of which a policy can write, cannot.
    """
    try:
        written = orjson.dumps(call)
    except orjson.JSONEncodeError:
        return False
    if bound_shape(written).depth > MAX_NESTING:
        return False
    return b"null" not in written or not _has_odd_number(call)


def _has_odd_number(value: Any) -> bool:
    """Return whether there is a NaN or an infinite number, which orjson writes as null."""
    rest = [value]
    while rest:
        match rest.pop():
            case float() as number if not math.isfinite(number):
                return True
            case dict() as members:
                rest.extend(members.values())
            case list() as items:
                rest.extend(items)
    return False


_OWN_ID = re.compile(r"(?P<prefix>functions\.)?.*:(?P<number>\d{1,6})", re.DOTALL)


def issue_id(prefix: str, own_id: str) -> str:
    """Return a new id for a call; ``own_id`` is the policy's own, or empty: its number ends the new
    one (``calls/call_ids.py``).
    """
    issued = prefix + secrets.token_hex(12)
    own = _OWN_ID.fullmatch(own_id)
    return f"{issued}_{'f' if own['prefix'] else 'n'}{own['number']}" if own else issued


def read_reply(reply: TextReply) -> ParsedResponse:
    """Return an endpoint's reply in the form of parsed tokens."""
    calls = [
        ToolCall(call.raw, call.name, call.arguments, "invalid" if call.arguments is None else "ok")
        for call in reply.calls
    ]
    return ParsedResponse(reply.text, reply.reasoning, calls)


def read_answer(parsed: ParsedResponse, generation: Generation, call_id_prefix: str) -> Answer:
    """Return the answer that a parsed generation makes; its calls get new ids."""
    calls: list[IssuedCall] = []
    malformed: list[str] = []
    recovered: list[str] = []
    for call in parsed.tool_calls:
        if (
            call.status == "ok"
            and call.name
            and isinstance(call.arguments, dict)
            and _is_serializable([call.name, call.arguments])
        ):
            calls.append(
                IssuedCall(issue_id(call_id_prefix, call.own_id), call.name, call.arguments)
            )
            recovered += [call.recovered] * bool(call.recovered)
        else:
            malformed.append(call.raw)
    text = parsed.content
    stop = generation.matched if isinstance(generation.matched, str) else None
    if stop and stop in text:  # engines keep the stop string; the APIs do not send it
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
        recovered=tuple(recovered),
        stop_reason=reason,
        stop_sequence=stop if reason == "stop_sequence" else None,
        usage={
            "prompt_tokens": generation.prompt_tokens,
            "completion_tokens": generation.completion_tokens,
            "cached_tokens": generation.cached_tokens,
        },
    )
