"""Request bodies: validated by type, with every fault named in the refusal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, LiteralString, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from runners.gateway.conversation import Piece
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.refusal import RefusalKind, Refused
from runners.records.text import make_printable, shorten

MAX_NAMED_FAULTS = 5
"""A body of another kind altogether has a fault in every line."""


ONE_ANSWER: LiteralString = "one answer is sampled per request: leave this out"
NOTHING_KEPT: LiteralString = "nothing is kept here for clients: send the whole conversation"


def only_value(value: object, reason: LiteralString) -> BeforeValidator:
    """Return the validator of a field that is served with one value, or absent, only.

    ``reason`` tells what to do instead.
    """

    def refuse(given: object) -> None:
        if given is not None and (type(given), given) != (type(value), value):
            raise PydanticCustomError("unserved", reason)

    return BeforeValidator(refuse)


def must_be_null(reason: LiteralString) -> BeforeValidator:
    """Return the validator of a field that is not served; ``reason`` tells what to use instead."""
    return only_value(None, reason)


class WireModel(BaseModel):
    """A JSON object of a client. Types are strict; unknown keys are ignored, since every version of
    a client brings new ones.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Typed(WireModel):
    """An object of which only the type counts."""

    type: Annotated[str, Field(max_length=100)]
    """Counted by name if it is ignored."""


class Other(WireModel):
    """An object that a policy cannot be shown as it is: its text, or a note, stands for it."""

    model_config = ConfigDict(extra="allow")

    @property
    def kind(self) -> str:
        """Its type."""
        return str(getattr(self, "type", ""))

    def shown_text(self) -> str:
        """Return the text in it under its type; a note if it has none."""
        texts: list[str] = []
        rest: list[object] = [self.model_extra]
        while rest:
            match rest.pop():
                case dict() as members:
                    texts += [members[key] for key in _TEXTS if isinstance(members.get(key), str)]
                    calls = (members.get(key) for key in _CALLS)
                    texts += [json.dumps(call, ensure_ascii=False) for call in calls if call]
                    rest += [members[key] for key in _PARTS if key in members]
                case list() as parts:
                    rest += reversed(parts)
        if not texts:
            return omission_text(self.kind)
        return "\n".join([f"[{self.kind}]", *texts])


_TEXTS = ("title", "source", "code", "text", "stdout", "stderr", "result", "output", "content")
_CALLS = ("input", "action", "args", "response")
_PARTS = ("content", "output", "results")
"""Members of content that hold text, those that say what a server was asked for or has answered,
and those that hold more content.
"""

MAX_UNKNOWN, MAX_KEY = 16, 64
"""Unknown keys of a request that are named, and characters of each: a client makes them up."""


class RequestBody(WireModel):
    """The body of a request for a turn, of any API.

    Clients and servers add keys as they like, so one that is unknown here is ignored and counted.
    Those below would change what a client gets back, whatever its API: they are refused.
    """

    model_config = ConfigDict(extra="allow")

    n: Annotated[None, only_value(1, ONE_ANSWER)] = None
    best_of: Annotated[None, only_value(1, ONE_ANSWER)] = None
    use_beam_search: Annotated[None, only_value(False, ONE_ANSWER)] = None
    echo: Annotated[None, only_value(False, "a prompt is not repeated in its answer")] = None
    continue_final_message: Annotated[
        None, only_value(False, "an assistant's message is not continued: end with a user's")
    ] = None
    previous_response_id: Annotated[None, must_be_null(NOTHING_KEPT)] = None
    session_params: Annotated[None, must_be_null(NOTHING_KEPT)] = None

    @property
    def unknown_keys(self) -> tuple[str, ...]:
        """Names of the keys that are unknown here, bounded."""
        return name_keys(self.model_extra)


def name_keys(members: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the first ``MAX_UNKNOWN`` members that a client made up, shortened."""
    names = islice(members or {}, MAX_UNKNOWN)
    return tuple(make_printable(" ".join(shorten(name, MAX_KEY).split())) for name in names)


Name = Annotated[str, Field(min_length=1, max_length=1000)]

ModelName = Annotated[str, Field(max_length=1000)]
"""Every event of an answer repeats it."""

StopSequences = Annotated[list[Name], Field(max_length=64)]
"""The engine looks for each after every token."""


def text_as_list(kind: str) -> BeforeValidator:
    """Return the validator that takes a bare string for a list of one text: clients send either,
    even of one message.
    """
    return BeforeValidator(
        lambda content: [{"type": kind, "text": content}] if isinstance(content, str) else content
    )


Body = TypeVar("Body", bound=BaseModel)


def parse_body(model: type[Body], body: bytes) -> Body:
    """Return a request body as ``model``; raises Refused, which names the faults."""
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


def check_conversation(pieces: AppendOnlyList[Piece], field: str) -> AppendOnlyList[Piece]:
    """Return the pieces of a conversation; raises Refused if there are none, or if the last one is
    the assistant's.
    """
    if not pieces:
        raise Refused(RefusalKind.INVALID, f"{field}: all of it is empty", param=field)
    if pieces[-1].role == "assistant":
        raise Refused(
            RefusalKind.INVALID,
            f"{field}: the assistant has the last word; this model does not continue prefilled "
            "answers, so the conversation must end with a user message or a tool's result",
            param=field,
        )
    return pieces


def read_object(value: Any, key: str) -> dict[str, Any]:
    """Return the arguments of a call that came back; what is no object is put in one."""
    if value is None:
        return {}
    return value if isinstance(value, dict) else {key: value}


def omission_text(kind: str) -> str:
    """Return the text that replaces content of another kind."""
    return f"[{kind.strip()} omitted: this model reads text only]"
