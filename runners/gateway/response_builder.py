"""How an answer is said in a dialect."""

from __future__ import annotations

from typing import Any, Protocol

from runners.gateway.conversation import Answer, TurnRequest


class ResponseBuilder(Protocol):
    """One dialect's words for an answer."""

    @property
    def NAME(self) -> str:
        """Which dialect it is: a retry comes in the same one."""
        ...

    def new_message_id(self) -> str:
        """Issue the id of an answer."""
        ...

    def new_call_id(self) -> str:
        """Issue the id of a tool call."""
        ...

    def message(self, answer: Answer, request: TurnRequest, message_id: str) -> dict[str, Any]:
        """Return the body that answers a request."""
        ...
