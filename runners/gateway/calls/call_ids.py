"""Ids of calls: unique ones for clients, and the policy's own where its template repeats them.

Kimi writes ``functions.Bash:0``, and its template repeats that with the result. So its number ends
the id that a client gets, which comes back with the result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from runners.gateway.conversation import Piece

_ISSUED = re.compile(r".*_(?P<form>[fn])(?P<number>\d{1,6})", re.DOTALL)
_FOREIGN = re.compile(r"functions\.[\w./:-]{1,128}:\d{1,6}")


def read_own_id(tool_id: str, name: str, number: int) -> str:
    """Return the policy's own id of a call of a tool.

    ``number``: the call's place among those of the conversation, by which Kimi numbers them; it
    stands for one that was not sampled here.
    """
    if _FOREIGN.fullmatch(tool_id):
        return tool_id
    issued = _ISSUED.fullmatch(tool_id)
    if issued is None:
        return f"functions.{name}:{number}"
    return f"{'functions.' * (issued['form'] == 'f')}{name}:{issued['number']}"


def name_calls(
    messages: list[dict[str, Any]], pieces: Sequence[Piece], first: int = 0, *, own_ids: bool
) -> list[dict[str, Any]]:
    """Return messages whose results name their tool, as templates ask for it that write the name;
    ``own_ids``: whose calls have the policy's own ids instead.

    ``pieces``: of the whole conversation; the messages are those from ``first`` on. Of calls with
    one id, a result belongs to the last one before it.
    """
    ids = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    if not ids and not (own_ids and any("tool_calls" in message for message in messages)):
        return messages
    before = _list_calls(pieces, first) if own_ids else _find_calls(pieces, first, set(ids))
    known = {piece.tool_id: (piece.name, number) for number, piece in enumerate(before)}
    number = len(before)
    for message in messages:
        for call in message.get("tool_calls", ()):
            name = call["function"]["name"]
            known[call["id"]] = name, number
            if own_ids:
                call["id"] = read_own_id(call["id"], name, number)
            number += 1
        if message["role"] == "tool" and message["tool_call_id"] in known:
            name, place = known[message["tool_call_id"]]
            if own_ids:
                message["tool_call_id"] = read_own_id(message["tool_call_id"], name, place)
            else:
                message["name"] = name
    return messages


def order_results(
    messages: list[dict[str, Any]], pieces: Sequence[Piece], first: int
) -> list[dict[str, Any]]:
    """Return messages whose results, up to the first turn of the assistant, stand in the order of
    the last calls before them; arguments as of ``name_calls``.
    """
    said = (at for at, message in enumerate(messages) if message["role"] == "assistant")
    end = next(said, len(messages))
    places = [at for at in range(end) if messages[at]["role"] == "tool"]
    if len(places) < 2:
        return messages
    calls = _find_calls(pieces, first, {messages[at]["tool_call_id"] for at in places})
    last = [piece.tool_id for piece in calls if piece.message == calls[-1].message]
    order = {call_id: number for number, call_id in enumerate(last)}
    results = [messages[at] for at in places]
    results.sort(key=lambda message: order.get(message["tool_call_id"], 0))
    ordered = dict(zip(places, results, strict=True))
    return [ordered.get(at, message) for at, message in enumerate(messages)]


def _list_calls(pieces: Sequence[Piece], end: int) -> list[Piece]:
    return [piece for piece in pieces[:end] if piece.kind == "tool_call"]


def _find_calls(pieces: Sequence[Piece], end: int, wanted: set[str]) -> list[Piece]:
    """Return the last call of each of these ids before a piece, in their order; they are mostly
    the last ones of all.
    """
    left, found = set(wanted), list[Piece]()
    for at in range(end - 1, -1, -1):
        if not left:
            break
        piece = pieces[at]
        if piece.kind == "tool_call" and piece.tool_id in left:
            found.append(piece)
            left.discard(piece.tool_id)
    return found[::-1]
