"""Bodies of requests: judged by type, and every fault named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import LiteralString, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from runners.gateway.conversation import Piece
from runners.gateway.refusal import RefusalKind, Refused

MAX_NAMED_FAULTS = 5
"""A body of the wrong kind altogether has a fault in every line."""


class WireModel(BaseModel):
    """A JSON object of a client: types are strict, unknown keys pass, because clients grow them
    with every version.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


Body = TypeVar("Body", bound=BaseModel)


def parse_body(model: type[Body], body: bytes) -> Body:
    """Judge a request body; every fault found is named in the refusal."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        places = [".".join(str(part) for part in fault["loc"]) for fault in found]
        faults = [
            f"{place}: {fault['msg']}".removeprefix(": ")
            for place, fault in zip(places, found, strict=True)
        ]
        more = (
            f" (and {len(faults) - MAX_NAMED_FAULTS} more)"
            if len(faults) > MAX_NAMED_FAULTS
            else ""
        )
        raise Refused(
            RefusalKind.INVALID,
            "; ".join(faults[:MAX_NAMED_FAULTS]) + more,
            param=places[0] or None,
        ) from None


def must_be_null(reason: LiteralString) -> BeforeValidator:
    """Mark a field that is known but may only be null; ``reason`` tells the client what to do."""

    def refuse(value: object) -> None:
        if value is not None:
            raise PydanticCustomError("unserved", reason)

    return BeforeValidator(refuse)


def check_conversation(pieces: Iterable[Piece], field: str) -> tuple[Piece, ...]:
    """Return the pieces of a conversation, without those that say nothing; refuses one that is
    empty or ends with the assistant.
    """
    said = tuple(
        piece for piece in pieces if piece.kind in ("tool_call", "tool_result") or piece.text
    )
    if not said:
        raise Refused(RefusalKind.INVALID, f"{field}: all of it is empty", param=field)
    if said[-1].role == "assistant":
        raise Refused(
            RefusalKind.INVALID,
            f"{field}: the assistant has the last word; this model does not continue prefilled "
            "answers, so the conversation must end with a user message or a tool's result",
            param=field,
        )
    return said


def omission_text(what: str) -> str:
    """Return what stands for content that is not text."""
    return f"[{what.strip()} omitted: this model reads text only]"
