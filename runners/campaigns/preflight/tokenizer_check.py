"""Check that an SGLang server reads and writes text as the policy does.

Beside its capabilities: the server's tokenizer must give our ids, our renderer must write the
model's own first prompt, and the server's parsers must read what the model's template writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from conf.errors import ConfigError
from conf.sections.training import LoraConfig
from runners.engines.capabilities import check_capabilities
from runners.engines.client import HttpEngine
from runners.engines.server_check import (
    REQUEST_DEADLINE_S,
    CheckFailed,
    CheckResult,
    EngineServers,
    check_each,
    run_check,
)
from runners.gateway.texts.chat_template import ChatTemplate
from runners.records.routing import RoutingShape
from runners.records.tokenizer import Renderer, Tokenizer

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
CALL_ARGUMENTS: dict[str, Any] = {"path": "src/ä b.py", "lines": 7}
THOUGHT = "Which line is it?"
ANSWER = "I look."
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You fix bugs."},
    # what tokenizers disagree on: accents, spaces, tabs, CJK, emoji, angle brackets, digits
    {"role": "user", "content": "naïve  café\t日本 🙂\n\n<x> 1234567"},
    {
        "role": "assistant",
        "reasoning_content": THOUGHT,
        "content": ANSWER,
        "tool_calls": [
            {
                "type": "function",
                "id": "c",
                "function": {"name": "read_file", "arguments": CALL_ARGUMENTS},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "def f():\n    return 1\n"},
]


@dataclass(frozen=True, slots=True)
class ServerParser:
    """A parser that the servers should have."""

    key: str
    """The configuration key that names it."""
    name: str
    used: bool
    """True if this run reads replies with it; if not, a job on a cluster would."""


@dataclass(frozen=True, slots=True)
class PolicyFormat:
    """The tokenizer, renderer and parsers by which the run's policy reads and writes text."""

    tokenizer: Tokenizer
    renderer: Renderer
    renderer_name: str
    directory: Path
    """Of the tokenizer; the model's own chat template may be there."""
    tool_call_parser: ServerParser | None = None
    reasoning_parser: ServerParser | None = None


async def probe_server(
    url: str,
    workers: Sequence[str],
    *,
    context_tokens: int,
    routing: RoutingShape | None,
    policy_format: PolicyFormat | None,
    lora: LoraConfig | None = None,
) -> list[CheckResult]:
    """Run every check at ``url`` and at each of ``workers``; no failure of the engine is raised.

    ``policy_format`` is None if the policy's tokenizer does not exist yet.
    """
    servers = EngineServers(url, workers)
    try:
        results = await check_capabilities(
            servers, context_tokens=context_tokens, routing=routing, lora=lora
        )
        if policy_format is None or not results[0].ok:
            return results
        return [*results, *await _check_format(servers.servers, policy_format)]
    finally:
        await servers.close()


async def _check_format(
    servers: Sequence[HttpEngine], policy_format: PolicyFormat
) -> list[CheckResult]:
    async def template() -> str:
        return _check_template(policy_format)

    async def everywhere(
        name: str, check: Callable[[HttpEngine], Awaitable[str]], *, fatal: bool = True
    ) -> CheckResult:
        return await run_check(name, lambda: check_each(servers, check), fatal=fatal)

    results = [await everywhere("tokenizer", partial(check_tokenizer, policy_format=policy_format))]
    # the chat-template renderer is the model's own template: nothing to compare
    if not isinstance(policy_format.renderer, ChatTemplate):
        results.append(await run_check("chat template", template, fatal=False))
    for name, check, parser in (
        ("tool-call parser", _check_call_parser, policy_format.tool_call_parser),
        ("reasoning parser", _check_reasoning_parser, policy_format.reasoning_parser),
    ):
        if parser is not None:
            check_parser = partial(check, policy_format=policy_format, parser=parser)
            results.append(await everywhere(name, check_parser, fatal=parser.used))
    return results


async def check_tokenizer(server: HttpEngine, policy_format: PolicyFormat) -> str:
    """Compare our ids of a templated conversation with the server's ids of the same text."""
    ids = policy_format.renderer.render_ids(MESSAGES, tools=TOOLS, add_generation_prompt=True)
    body = {"prompt": policy_format.tokenizer.decode(ids), "add_special_tokens": False}
    answer = await server.request_json("/tokenize", body, deadline_s=REQUEST_DEADLINE_S)
    theirs = answer.get("tokens")
    if not isinstance(theirs, list):
        raise CheckFailed("/tokenize does not answer with tokens: it needs a newer SGLang")
    if theirs == ids:
        return f"{len(ids)} ids of a templated conversation are the same"
    raise CheckFailed(
        f"{_describe_difference(ids, theirs)} at the server: set model.tokenizer to the tokenizer "
        "of the model that it serves"
    )


def _check_template(policy_format: PolicyFormat) -> str:
    """Compare the renderer's first prompt with that of the model's own chat template, and look for
    the tools in it.
    """
    # only system and user: later messages differ rightly, as templates drop earlier thoughts
    first = MESSAGES[:2]
    ids = policy_format.renderer.render_ids(first, tools=TOOLS, add_generation_prompt=True)
    if TOOLS[0]["function"]["name"] not in policy_format.tokenizer.decode(ids):
        raise CheckFailed(
            f"model.renderer={policy_format.renderer_name} shows the policy no tools, as its "
            "template has no place for them: name them in the system prompt, or take another model"
        )
    try:
        template = ChatTemplate(policy_format.tokenizer, policy_format.directory)
    except ConfigError:
        return "not seen: the tokenizer's directory has none"
    try:
        theirs = template.render_ids(first, tools=TOOLS, add_generation_prompt=True)
    except ValueError as error:
        raise CheckFailed(
            f"the model's own template refuses a plain first prompt: {error}"
        ) from error
    if theirs == ids:
        return f"model.renderer={policy_format.renderer_name} writes the same first prompt"
    raise CheckFailed(
        f"model.renderer={policy_format.renderer_name} is not the model's own template: "
        f"{_describe_difference(ids, theirs)} by it: choose the renderer of the model's family, or "
        "model.renderer=chat_template"
    )


async def _check_call_parser(
    server: HttpEngine, policy_format: PolicyFormat, parser: ServerParser
) -> str:
    """Let the server parse a tool call that the model's template wrote."""
    text = _render_reply(policy_format)
    body = {"text": text, "tools": TOOLS, "tool_call_parser": parser.name}
    answer = await server.request_json("/parse_function_call", body, deadline_s=REQUEST_DEADLINE_S)
    calls = answer.get("calls") or []
    read = [(call.get("name"), _parse_arguments(call.get("parameters"))) for call in calls]
    if read != [("read_file", CALL_ARGUMENTS)]:
        raise CheckFailed(
            f"{parser.key}={parser.name} reads {read or 'no call'} in a call that the model's "
            "template wrote: choose the parser of the model's own family"
        )
    return f"{parser.name} reads what the template writes"


async def _check_reasoning_parser(
    server: HttpEngine, policy_format: PolicyFormat, parser: ServerParser
) -> str:
    """Let the server separate a thought that the model's template wrote."""
    text = _render_reply(policy_format)
    if THOUGHT not in text:
        return "not seen: the template writes no thoughts"
    body = {"text": text, "reasoning_parser": parser.name}
    answer = await server.request_json("/separate_reasoning", body, deadline_s=REQUEST_DEADLINE_S)
    read, rest = answer.get("reasoning_text"), answer.get("text")
    if str(read).strip() != THOUGHT or ANSWER not in str(rest):
        raise CheckFailed(
            f"{parser.key}={parser.name} reads the thought {read!r} and the text {rest!r} in a "
            "reply that the model's template wrote: choose the parser of the model's own family"
        )
    return f"{parser.name} reads what the template writes"


def _render_reply(policy_format: PolicyFormat) -> str:
    """Return what the policy would have sampled for the assistant's message."""
    render, decode = policy_format.renderer.render_ids, policy_format.tokenizer.decode
    prompt = decode(render(MESSAGES[:2], tools=TOOLS, add_generation_prompt=True))
    whole = decode(render(MESSAGES[:3], tools=TOOLS))
    return whole[_shared_length(prompt, whole) :]


def _describe_difference(ours: Sequence[int], theirs: Sequence[int]) -> str:
    at = _shared_length(ours, theirs)
    here, there = (str(ids[at]) if at < len(ids) else "missing" for ids in (ours, theirs))
    return f"id {at} of a templated conversation is {here} here and {there}"


def _shared_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _parse_arguments(written: Any) -> Any:
    try:
        return orjson.loads(written)
    except (orjson.JSONDecodeError, TypeError):
        return written
