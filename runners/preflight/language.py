"""What a run needs of an SGLang server, each thing tried: besides its capabilities, that it reads
and writes the same tokens as we do, and takes replies apart as the model writes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from conf.errors import ConfigError
from runners.engines.capabilities import (
    ASK_S,
    Finding,
    Fleet,
    Trouble,
    capabilities,
    each,
    tried,
)
from runners.engines.client import HttpEngine
from runners.gateway.chat_template import ChatTemplate
from runners.gateway.tokenizer import Renderer, Tokenizer
from runners.trajectory.routing import RoutingShape

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
                "required": ["path"],
            },
        },
    }
]
CALL: dict[str, Any] = {"path": "src/ä b.py", "lines": 7}
THOUGHT = "Which line is it?"
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": "naïve  café\t日本 🙂\n\n<x> 1234567"},
    {
        "role": "assistant",
        "reasoning_content": THOUGHT,
        "content": "I look.",
        "tool_calls": [
            {"type": "function", "id": "c", "function": {"name": "read_file", "arguments": CALL}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "def f():\n    return 1\n"},
]


@dataclass(frozen=True, slots=True)
class Parser:
    """A parser that the servers are to have."""

    key: str
    """Where the configuration names it."""
    name: str
    used: bool
    """Whether this run reads replies with it; else a job on a cluster would."""


@dataclass(frozen=True, slots=True)
class Language:
    """How the run's policy reads and writes."""

    tokenizer: Tokenizer
    renderer: Renderer
    renderer_name: str
    directory: Path
    """Of the tokenizer, where the model's own chat template may be."""
    tool_call_parser: Parser | None = None
    reasoning_parser: Parser | None = None


async def probe(
    url: str,
    workers: Sequence[str],
    *,
    context_tokens: int,
    routing: RoutingShape | None,
    language: Language | None,
) -> list[Finding]:
    """Try everything at ``url``, and at every worker that it is said to have; never raises for what
    the engine does. ``language``: None if the policy's tokenizer is not made yet.
    """
    fleet = Fleet(url, workers)
    try:
        found = await capabilities(fleet, context_tokens=context_tokens, routing=routing)
        if language is None or not found[0].ok:
            return found
        return [*found, *await _language(fleet.servers, language)]
    finally:
        await fleet.close()


async def _language(servers: Sequence[HttpEngine], language: Language) -> list[Finding]:
    async def template() -> str:
        return _template(language)

    async def everywhere(
        name: str, ask: Callable[[HttpEngine], Awaitable[str]], *, fatal: bool = True
    ) -> Finding:
        return await tried(name, lambda: each(servers, ask), fatal=fatal)

    found = [await everywhere("tokenizer", lambda server: _tokenizer(server, language))]
    if not isinstance(language.renderer, ChatTemplate):
        found.append(await tried("chat template", template, fatal=False))
    tools, thoughts = language.tool_call_parser, language.reasoning_parser
    if tools is not None:
        ask = partial(_reads_call, language=language, parser=tools)
        found.append(await everywhere("tool-call parser", ask, fatal=tools.used))
    if thoughts is not None:
        ask = partial(_reads_thought, language=language, parser=thoughts)
        found.append(await everywhere("reasoning parser", ask, fatal=thoughts.used))
    return found


async def _tokenizer(server: HttpEngine, language: Language) -> str:
    """Compare what the template makes here with what the server makes of the same text."""
    ids = language.renderer.render_ids(MESSAGES, tools=TOOLS, add_generation_prompt=True)
    body = {"prompt": language.tokenizer.decode(ids), "add_special_tokens": False}
    theirs = (await server.ask("/tokenize", body, deadline_s=ASK_S)).get("tokens")
    if not isinstance(theirs, list):
        raise Trouble("/tokenize does not answer with tokens: it needs a newer SGLang")
    if theirs == ids:
        return f"{len(ids)} ids of a templated conversation are the same"
    raise Trouble(
        f"{_difference(ids, theirs)} at the server: set model.tokenizer to the tokenizer of the "
        "model that it serves"
    )


def _template(language: Language) -> str:
    """Compare the renderer's first prompt with that of the model's own chat template."""
    try:
        own = ChatTemplate(language.tokenizer, language.directory)
    except ConfigError:
        return "not seen: the tokenizer's directory has none"
    try:
        theirs = own.render_ids(MESSAGES[:2], tools=TOOLS, add_generation_prompt=True)
    except ValueError as error:
        raise Trouble(f"the model's own template refuses a plain first prompt: {error}") from error
    ids = language.renderer.render_ids(MESSAGES[:2], tools=TOOLS, add_generation_prompt=True)
    if theirs == ids:
        return f"model.renderer={language.renderer_name} writes the same first prompt"
    raise Trouble(
        f"model.renderer={language.renderer_name} is not the model's own template: "
        f"{_difference(ids, theirs)} by it: choose the renderer of the model's family, or "
        "model.renderer=chat_template"
    )


def _difference(ours: Sequence[int], theirs: Sequence[int]) -> str:
    at = _shared(ours, theirs)
    return f"id {at} of a templated conversation is {_at(ours, at)} here and {_at(theirs, at)}"


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how long they are the same."""
    same = (a == b for a, b in zip(one, other, strict=False))
    return next((at for at, equal in enumerate(same) if not equal), min(len(one), len(other)))


def _at(ids: Sequence[int], place: int) -> str:
    return str(ids[place]) if place < len(ids) else "missing"


async def _reads_call(server: HttpEngine, language: Language, parser: Parser) -> str:
    """Have the server read a call that the model's own template wrote."""
    text = _reply(language)
    body = {"text": text, "tools": TOOLS, "tool_call_parser": parser.name}
    calls = (await server.ask("/parse_function_call", body, deadline_s=ASK_S)).get("calls") or []
    read = [(call.get("name"), _arguments(call.get("parameters"))) for call in calls]
    if read != [("read_file", CALL)]:
        raise Trouble(
            f"{parser.key}={parser.name} reads {read or 'no call'} in a call that the model's "
            "template wrote: choose the parser of the model's own family"
        )
    return f"{parser.name} reads what the template writes"


async def _reads_thought(server: HttpEngine, language: Language, parser: Parser) -> str:
    """Have the server separate a thought that the model's own template wrote."""
    text = _reply(language)
    if THOUGHT not in text:
        return "not seen: the template writes no thoughts"
    body = {"text": text, "reasoning_parser": parser.name}
    found = await server.ask("/separate_reasoning", body, deadline_s=ASK_S)
    read, rest = found.get("reasoning_text"), found.get("text")
    if str(read).strip() != THOUGHT or "I look." not in str(rest):
        raise Trouble(
            f"{parser.key}={parser.name} reads the thought {read!r} and the text {rest!r} in a "
            "reply that the model's template wrote: choose the parser of the model's own family"
        )
    return f"{parser.name} reads what the template writes"


def _reply(language: Language) -> str:
    """Return what the policy would have sampled for the assistant's message."""
    render, decode = language.renderer.render_ids, language.tokenizer.decode
    before = decode(render(MESSAGES[:2], tools=TOOLS, add_generation_prompt=True))
    written = decode(render(MESSAGES[:3], tools=TOOLS))
    return written[_shared(before, written) :]


def _arguments(written: Any) -> Any:
    try:
        return orjson.loads(written)
    except (orjson.JSONDecodeError, TypeError):
        return written
