"""The interface between the gateway and a dialect (one vendor's API).

A ``Dialect`` reads the bodies of one endpoint; a module that satisfies ``Vendor`` has its errors
and models. Everything that a request decides about its answer (the kinds of its tools, whether it
streams) is in the ``ParsedRequest``, so a dialect keeps no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from runners.gateway.conversation import Answer, IssuedCall, Piece, TurnRequest
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.dialects.body import RequestBody, parse_body
from runners.gateway.refusal import Refused


class ResponseBuilder(Protocol):
    """Builds the body that answers a request, or frames it as server-sent events: ``open_stream``
    at once, ``PING`` while the engine works, then ``complete_stream`` or ``fail_stream``.

    The frames of ``open_stream`` and ``complete_stream`` together carry exactly the body.
    """

    @property
    def NAME(self) -> str:
        """The dialect's name; part of a request's fingerprint, as a retry has the same dialect."""
        ...

    @property
    def CALL_ID_PREFIX(self) -> str:
        """Beginning of the ids of tool calls."""
        ...

    @property
    def PING(self) -> bytes:
        """Keeps an idle stream alive: clients and proxies close connections that are silent."""
        ...

    def new_message_id(self) -> str:
        """Issue the id of an answer."""
        ...

    def build_response(
        self, answer: Answer, request: TurnRequest, message_id: str
    ) -> dict[str, Any]:
        """Return the body that answers a request."""
        ...

    def sent_calls(self, answer: Answer) -> Sequence[IssuedCall]:
        """Return the calls of an answer as they come back if their client changes nothing."""
        ...

    def open_stream(self, request: TurnRequest, message_id: str, prompt_tokens: int) -> bytes:
        """Frame what is known before the policy has answered."""
        ...

    def complete_stream(self, body: dict[str, Any]) -> bytes:
        """Frame the content of ``body`` and the end of the stream."""
        ...

    def fail_stream(self, refused: Refused, request: TurnRequest, message_id: str) -> bytes:
        """Frame a failure, which ends the stream. It is all that can be done: the status line, 200,
        was sent with the opening.
        """
        ...


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request for a turn, with what answers it."""

    request: TurnRequest
    builder: ResponseBuilder
    stream: bool
    """The client wants a stream, not one body."""


Body = TypeVar("Body", bound=RequestBody)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Dialect(Generic[Body, Item]):
    """Reads the bodies of one endpoint: the list of the conversation item by item, so that items
    which were read before are not read again (``request_cache.py``), then everything together.
    """

    body: type[Body]
    conversation: str
    """Member of the body that holds the conversation, a list."""
    items: TypeAdapter[list[Item]]
    """Validates a part of that list."""
    split_item: Callable[[Item, int], Iterable[Piece]]
    """Returns the pieces of an item, which is, or is in, the message of that number."""
    joins: Callable[[Item], bool]
    """Tells whether an item is of one message with the items before it for which this is true."""
    build: Callable[[Body, AppendOnlyList[Piece], Mapping[str, str]], ParsedRequest]
    """Makes the request of a body, of the pieces of all items, none of them empty, and of the
    headers. It does not look at the body's own conversation, of which items may be missing. Raises
    Refused.
    """

    def parse_request(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """Parse body and headers of a request for a turn; raises Refused."""
        wire = parse_body(self.body, body)
        split = self.split_items(getattr(wire, self.conversation), 0, None)
        pieces = AppendOnlyList(piece for _, pieces in split for piece in pieces)
        return self.build(wire, pieces, headers)

    def split_items(
        self, items: Iterable[Item], index: int, opened: int | None
    ) -> Iterator[tuple[int | None, list[Piece]]]:
        """Yield the pieces of each item that are not empty, and before them the message that the
        next item may join; raises Refused. ``index``: of the first item; ``opened``: the message
        that it may join.
        """
        for number, item in enumerate(items, index):
            opened = (number if opened is None else opened) if self.joins(item) else None
            pieces = self.split_item(item, number if opened is None else opened)
            yield opened, [piece for piece in pieces if not piece.is_empty]


def stands_alone(item: object) -> bool:
    """Return False: every item is a message of its own."""
    return False


class Vendor(Protocol):
    """The part that all endpoints of a vendor share."""

    def error_response(self, refused: Refused) -> tuple[int, dict[str, Any]]:
        """Return HTTP status and error envelope."""
        ...

    def describe_model(self, name: str) -> dict[str, Any]:
        """Return the answer to ``GET /v1/models/{name}``."""
        ...

    def list_models(self, *names: str) -> dict[str, Any]:
        """Return the answer to ``GET /v1/models``."""
        ...
