"""The interface between the gateway and a dialect (one vendor's API).

A dialect is a ``parse_request`` for one endpoint; a module that satisfies ``Vendor`` has its errors
and models. Everything that a request decides about its answer (the kinds of its tools, whether it
streams) is in the ``ParsedRequest``, so a dialect keeps no state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from runners.gateway.conversation import Answer, TurnRequest
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


ParseRequest = Callable[[bytes, Mapping[str, str]], ParsedRequest]
"""Parses body and headers of a request for a turn; raises Refused."""


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
