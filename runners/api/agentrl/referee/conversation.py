"""Conversations free of any API: what an agent program sends, and what it gets.

Every text of a scenario holds a *word* that stands nowhere else, so that it is seen where a text
went, whatever template wrote it down.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from conf.errors import AgentrlError

WORD = re.compile(r"zx[a-wy]{6}")
"""No word is a part of another one, and no escape of JSON changes one."""
_LETTERS = "abcdefghijklmnopqrstuvwy"


class RefereeError(AgentrlError):
    """An adapter, a tokenizer or a file that the referee was given cannot be used."""


class NotOffered(Exception):
    """The API has no way to say this, or the gateway refuses it as it may."""


class GatewayFault(Exception):
    """The gateway did not answer as its API wants: an error, nothing in time, or garbage."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; 0: there was no answer at all."""


class Words:
    """Words that were never used before."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._used: set[str] = set()

    def new(self) -> str:
        """Return another word."""
        word = "zx" + "".join(self._random.choices(_LETTERS, k=6))
        if word in self._used:
            return self.new()
        self._used.add(word)
        return word

    def fill(self, value: Any) -> Any:
        """Return a text, or a structure of texts, with a new word for each ``{w}``."""
        if isinstance(value, str):
            return re.sub(r"\{w\}", lambda _: self.new(), value)
        if isinstance(value, Mapping):
            return {key: self.fill(part) for key, part in value.items()}
        if isinstance(value, PolicyAnswer | PolicyCall):
            names = (each.name for each in fields(value))
            return replace(value, **{name: self.fill(getattr(value, name)) for name in names})
        return type(value)(map(self.fill, value)) if isinstance(value, list | tuple) else value


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
    """One message that a program sends, or an answer that it got; a result is one of its own."""

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
    native: Any = None
    """Signatures and items that an API wants back beside it."""
    absent: Literal["null", "empty", "left out"] = "empty"
    """The form of an assistant's missing text where the API leaves the choice."""
    stop: str = "stop"
    """Of an answer: ``stop``, ``calls``, ``length``, or the API's own word for another reason."""
    key: int = 0
    """Equal for messages that say the same to the policy: the truth of a scenario. 0: an answer
    that just came. Not sent.
    """

    @property
    def text(self) -> str:
        """All of its text."""
        return "\n".join(self.texts)

    @property
    def is_blank(self) -> bool:
        """Return whether it is an answer that says nothing: programs leave it out."""
        return self.role == "assistant" and not self.calls and not self.text.strip()

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
    plain_json: bool = True
    """False: keys in another order, blanks, and escapes of JSON, as other serialisers write it."""


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """An answer of the policy, or a fault of its engine, that a scenario wants."""

    text: str = ""
    calls: tuple[PolicyCall, ...] = ()
    thought: str = ""
    until: str = ""
    """It ends where this stands in what the policy writes."""
    loose: bool = False
    """A gateway may hand it over as it likes: a call of an unknown tool."""
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
        whole = self.finish == "stop" and not (self.until or self.loose or self.fault)
        return whole and all(isinstance(call.arguments, Mapping) for call in self.calls)

    def words(self) -> set[str]:
        """Return its words, those of its thought included."""
        return find_words(self.text, self.thought, *(call.arguments for call in self.calls))


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

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and output."""
        return self.prompt + self.output


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
    reply: Message | None
    """None: it got no answer."""
    fault: str = ""
    status: int = 0
    """Of HTTP; 0: there was no answer at all."""
    sampling: Sampling | None = None
    """The engine's call that it got."""
    may_fail: bool = False
    """The scenario made the engine fail, or left."""


def readable(text: str) -> str:
    """Return a text with U+FFFD for each lone surrogate, which no tokenizer can encode."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
