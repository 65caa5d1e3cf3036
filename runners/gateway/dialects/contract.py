"""What the server needs of a dialect.

A dialect is a module that satisfies ``Dialect``. Everything a request decides about its answer (the
kinds of its tools, whether it streams) is in the ``Asked`` that comes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from runners.gateway.conversation import TurnRequest
from runners.gateway.refusal import Refused
from runners.gateway.response_builder import ResponseBuilder


class StreamFraming(Protocol):
    """How an answer is streamed: opening at once, pings while the engine works, then the rest; or
    an error instead of the rest.
    """

    PING: bytes
    """What keeps an idle stream alive."""

    def opening(self, request: TurnRequest, message_id: str, prompt_tokens: int) -> bytes:
        """Frame what can be said before the policy has answered."""
        ...

    def rest(self, body: dict[str, Any]) -> bytes:
        """Frame everything else; with the opening it says what ``body`` says."""
        ...

    def error(self, refused: Refused, request: TurnRequest, message_id: str) -> bytes:
        """Frame a failure; it ends the stream."""
        ...


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request for a turn, and how its answer is to be said."""

    request: TurnRequest
    voice: ResponseBuilder
    framing: StreamFraming | None
    """None: the client wants one body."""


class Dialect(Protocol):
    """One API."""

    def read(self, body: bytes, headers: Mapping[str, str]) -> ParsedRequest:
        """Judge a request for a turn; raises Refused."""
        ...

    def refusal(self, refused: Refused) -> tuple[int, dict[str, Any]]:
        """Return HTTP status and error envelope."""
        ...

    def model(self, name: str) -> dict[str, Any]:
        """Return what ``GET /v1/models/{name}`` answers."""
        ...

    def models(self, *names: str) -> dict[str, Any]:
        """Return what ``GET /v1/models`` answers."""
        ...
