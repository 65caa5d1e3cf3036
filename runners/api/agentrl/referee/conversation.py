"""Conversations free of any API: what an agent program sends, and what it gets.

Every text of a scenario holds a *word* that stands nowhere else, so that it is seen where a text
went, whatever template wrote it down.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from conf.errors import AgentrlError

WORD = re.compile(r"zx[a-wy]{6}")
"""No word is a part of another one, and no escape of JSON changes one."""
_LETTERS = "abcdefghijklmnopqrstuvwy"


class RefereeError(AgentrlError):
    """An adapter, an engine or a file that the referee was given cannot be used."""


class NotOffered(Exception):
    """The API has no way to say this, or the gateway refuses it as it may."""


class GatewayFault(Exception):
    """The gateway did not answer as its API wants: an error, nothing in time, or garbage."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; 0: there was no answer at all."""


@dataclass(slots=True)
class Words:
    """Words that were never used before."""

    start: int = 0
    used: int = 0

    def new(self) -> str:
        """Return the next word."""
        self.used += 1
        # an odd factor spreads neighbours, and never gives one word twice
        number = (self.start + self.used) * 7_919_317 % 24**6
        letters = ""
        for _ in range(6):
            number, digit = divmod(number, 24)
            letters += _LETTERS[digit]
        return f"zx{letters}"

    def fill(self, value: Any) -> Any:
        """Return a text, or a structure of texts, with a new word for each ``{w}``."""
        if isinstance(value, str):
            return re.sub(r"\{w\}", lambda _: self.new(), value)
        if isinstance(value, Mapping):
            return {key: self.fill(part) for key, part in value.items()}
        return [self.fill(part) for part in value] if isinstance(value, list) else value


def find_words(*values: Any) -> set[str]:
    """Return the words in texts, or in structures of texts."""
    return {
        word
        for value in values
        for word in WORD.findall(value if isinstance(value, str) else json.dumps(value))
    }


@dataclass(frozen=True, slots=True)
class PolicyCall:
    """A call of a tool."""

    name: str
    arguments: Any
    """An object; a text where it is no JSON object."""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message; the result of a call is one of its own."""

    role: Literal["system", "user", "assistant", "tool"]
    texts: tuple[str, ...] = ()
    """Blocks of text."""
    calls: tuple[PolicyCall, ...] = ()
    thought: str = ""
    call_id: str = ""
    """Of a result: the call that it answers."""
    is_list: bool = True
    """Its content is sent as a list of blocks; False: as one text, where there is one block."""
    marked: bool = False
    """It carries a mark for a cache."""
    image: bool = False
    origin: int | None = None
    """The turn that answered so, or an edited copy of it; None: the program's own. Not sent."""
    native: Any = None
    """Signatures and items that an API wants back beside it."""
    absent: Literal["null", "empty", "left out"] = "empty"
    """The form of an assistant's missing text where the API leaves the choice."""

    @property
    def text(self) -> str:
        """All of its text."""
        return "\n".join(self.texts)

    def words(self) -> set[str]:
        """Return its words, but for those of its thought."""
        return find_words(*self.texts, *((call.name, call.arguments) for call in self.calls))


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the program offers."""

    name: str
    description: str
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> dict[str, Any]:
        """Its JSON schema."""
        return {"type": "object", "properties": dict(self.properties)}


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """Everything that one request says."""

    system: str
    tools: tuple[Tool, ...]
    history: tuple[Message, ...]
    max_tokens: int = 4000
    plain_json: bool = True
    """False: keys in another order, blanks, and escapes of JSON, as other serialisers write it."""

    def words(self) -> set[str]:
        """Return the words that the policy may see."""
        own = {word for message in self.history for word in message.words()}
        return own | find_words(self.system)


@dataclass(frozen=True, slots=True)
class ProgramReply:
    """An answer as the program received it."""

    texts: tuple[str, ...] = ()
    calls: tuple[PolicyCall, ...] = ()
    thought: str = ""
    stop: str = "stop"
    """``stop``, ``calls`` or ``length``; the API's own word where it is another one."""
    native: Any = None

    @property
    def text(self) -> str:
        """All of its text."""
        return "\n".join(self.texts)

    def words(self) -> set[str]:
        """Return its words, its thought's included."""
        return find_words(*self.texts, self.thought, *(call.arguments for call in self.calls))

    def message(self, origin: int) -> Message:
        """Return the message that sends it back unchanged."""
        return Message(
            "assistant", self.texts, self.calls, self.thought, origin=origin, native=self.native
        )


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """An answer of the policy, or a fault of its engine, that a scenario wants."""

    text: str = ""
    calls: tuple[PolicyCall, ...] = ()
    thought: str = ""
    raw: str | None = None
    """The text that is sampled instead, where it is no well-formed answer."""
    finish: str = "stop"
    """``stop``, or ``length``: cut off, without the token that ends a turn."""
    odd: bool = False
    """Sampled in other tokens than those that the tokenizer gives for its text."""
    hold: bool = False
    """Given only when it is released."""
    fault: str = ""
    """``500``, ``503``, ``drop``: the connection is cut, ``garbage``: no JSON, ``abort``: half of
    it, as an engine that gets new weights answers.
    """

    @property
    def is_exact(self) -> bool:
        """The program has to get just this text and these calls."""
        return self.raw is None and self.finish == "stop" and not self.fault


@dataclass(frozen=True, slots=True)
class Sampling:
    """One call of the engine."""

    index: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int
    """Of the weights; 0: its wire does not tell."""
    cue: str
    answer: PolicyAnswer
    finish: str = "stop"
    """``stop``, ``length`` or ``abort``."""
    state: Literal["done", "cut", "fault"] = "done"
    """``cut``: whoever asked closed the connection first; ``fault``: the scenario wanted one."""
    unscripted: bool = False
    """No scenario asked for it: the prompt has no cue, or all its answers were given before."""


@dataclass(frozen=True, slots=True)
class TrainedSample:
    """One sequence that a gateway gives to the trainer."""

    tokens: tuple[int, ...]
    mask: tuple[int, ...]
    """1: trained."""
    logprobs: tuple[float, ...] | None = None
    versions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ProgramTurn:
    """One request of the program, and how it was answered."""

    index: int
    request: ProgramRequest
    reply: ProgramReply | None
    """None: it got no answer."""
    fault: str = ""
    status: int = 200
    """Of HTTP; 0: there was no answer at all."""
    sampling: int | None = None
    """The engine's call that it got."""
    cancelled: bool = False
    may_fail: bool = False
    """The scenario made the engine fail, or left."""


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values of a structure that are no structures."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for part in value:
        yield from leaves(part)


def renumber(messages: Iterable[Message], ids: Mapping[str, str]) -> list[Message]:
    """Return messages whose calls and results have other ids."""
    return [
        replace(
            message,
            calls=tuple(replace(call, id=ids.get(call.id, call.id)) for call in message.calls),
            call_id=ids.get(message.call_id, message.call_id),
        )
        for message in messages
    ]


def readable(text: str) -> str:
    """Return a text with U+FFFD for each lone surrogate, which no tokenizer can encode."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
