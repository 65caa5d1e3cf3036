"""Parsed requests as plain values (dict, list, str, bytes, numbers), for another process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from runners.gateway.conversation import Piece, RequestAttribution, TurnRequest
from runners.gateway.dialects import anthropic_reply, google_reply
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.dialects.contract import ParsedRequest, ResponseBuilder
from runners.gateway.dialects.openai_chat_reply import ChatReply
from runners.gateway.dialects.openai_responses_reply import ResponsesReply
from runners.gateway.dialects.openai_tools import PolicyTool

_PIECE = tuple(field.name for field in fields(Piece) if field.name != "key")
_REQUEST = tuple(
    field.name for field in fields(TurnRequest) if field.name not in ("pieces", "attribution")
)


def to_plain(parsed: ParsedRequest, read: Sequence[Piece] = ()) -> dict[str, Any]:
    """Return a parsed request as plain values; those of its pieces that are in ``read``, which is
    sent beside it, as their places there.
    """
    request, builder = parsed.request, parsed.builder
    places = {id(piece): place for place, piece in enumerate(read)}
    plain: dict[str, Any] = {
        "request": {name: getattr(request, name) for name in _REQUEST},
        "attribution": asdict(request.attribution),
        "pieces": [
            places[id(piece)] if id(piece) in places else piece_to_plain(piece)
            for piece in request.pieces
        ],
        "stream": parsed.stream,
        "builder": builder.NAME,
    }
    match builder:
        case ChatReply():
            plain["with_usage"] = builder.with_usage
        case ResponsesReply():
            plain["tools"] = {name: asdict(tool) for name, tool in builder.tools.items()}
    return plain


def piece_to_plain(piece: Piece) -> tuple[Any, ...]:
    """Return a piece and its digest as plain values."""
    return (*(getattr(piece, name) for name in _PIECE), piece.digest())


def read_pieces(plain: Iterable[Any], read: Sequence[Piece] = ()) -> list[Piece]:
    """Return pieces that ``to_plain`` was given, their digests with them; ``read`` as there."""
    return [read[each] if isinstance(each, int) else Piece(*each) for each in plain]


def from_plain(plain: dict[str, Any], pieces: Iterable[Piece]) -> ParsedRequest:
    """Return the parsed request that ``to_plain`` was given; ``pieces`` as of ``read_pieces``."""
    request = TurnRequest(
        **plain["request"],
        pieces=AppendOnlyList(pieces),
        attribution=RequestAttribution(**plain["attribution"]),
    )
    builder: ResponseBuilder = anthropic_reply
    match plain["builder"]:
        case google_reply.NAME:
            builder = google_reply
        case ChatReply.NAME:
            builder = ChatReply(plain["with_usage"])
        case ResponsesReply.NAME:
            tools = {name: PolicyTool(**tool) for name, tool in plain["tools"].items()}
            builder = ResponsesReply(tools)
    return ParsedRequest(request, builder, plain["stream"])
