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
_FOREIGN = re.compile(r"functions\.[\w./-]{1,128}:\d{1,6}")


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
    messages: list[dict[str, Any]], pieces: Sequence[Piece], *, own_ids: bool
) -> list[dict[str, Any]]:
    """Return messages whose results name their tool, as templates ask for it that write the name;
    ``own_ids``: whose calls have the policy's own ids instead.

    ``pieces``: of the whole conversation, which ends with the messages.
    """
    wanted = {message["tool_call_id"] for message in messages if message["role"] == "tool"}
    if own_ids:
        wanted.update(call["id"] for each in messages for call in each.get("tool_calls", ()))
    if not wanted:
        return messages
    found: dict[str, tuple[str, int]] = {}
    calls = [piece for piece in pieces if piece.kind == "tool_call"] if own_ids else ()
    for number, piece in enumerate(calls or _calls_from_the_end(pieces, wanted)):
        found.setdefault(piece.tool_id, (piece.name, number))
    for message in messages:
        if message["role"] == "tool" and message["tool_call_id"] in found:
            name, number = found[message["tool_call_id"]]
            if own_ids:
                message["tool_call_id"] = read_own_id(message["tool_call_id"], name, number)
            else:
                message["name"] = name
        for call in message.get("tool_calls", ()) if own_ids else ():
            name, number = found[call["id"]]
            call["id"] = read_own_id(call["id"], name, number)
    return messages


def _calls_from_the_end(pieces: Sequence[Piece], wanted: set[str]) -> list[Piece]:
    """Return the calls of these ids; they are mostly among the last."""
    left, found = set(wanted), []
    for at in range(len(pieces) - 1, -1, -1):
        piece = pieces[at]
        if piece.kind == "tool_call" and piece.tool_id in left:
            found.append(piece)
            left.discard(piece.tool_id)
            if not left:
                break
    return found
