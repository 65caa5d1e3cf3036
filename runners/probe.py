"""What an SGLang server, or a router, must be able to do for a run, each thing tried.

Capabilities are tried, not read off a version: flags, routers and releases take them away without a
word.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from conf.errors import AgentrlError
from runners.engines.client import HttpEngine
from runners.engines.contract import EngineError
from runners.engines.routing_probe import RoutingProbeError, probe_routing
from runners.gateway.tokenizer import Renderer, Tokenizer
from runners.trajectory.routing import RoutingShape

ASK_S = 30.0
ABORT_S = 10.0
"""From an abort to the answer that says so; a server looks at aborts between two steps."""
BEGUN_S = 0.5
"""A request gets so long to be at its worker before it is aborted."""
LONG = 4096
"""Tokens of the request that is aborted: more than a server samples meanwhile."""
PROMPT = [1, 2, 3, 4]

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
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You fix bugs."},
    {"role": "user", "content": "naïve  café\t日本 🙂\n\n<x> 1234567"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"type": "function", "id": "c", "function": {"name": "read_file", "arguments": CALL}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "def f():\n    return 1\n"},
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried."""

    name: str
    ok: bool
    detail: str
    """What was found; for a problem, with the mend."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the run needs of an engine."""

    tokenizer: Tokenizer
    renderer: Renderer
    context_tokens: int
    routing: RoutingShape | None
    """Set if routing is to be captured."""
    tool_call_parser: str | None
    """Set if the server is to read the replies."""


class _Trouble(Exception):
    """A probe found a problem."""


async def probe(url: str, workers: Sequence[str], wanted: Wanted) -> list[Finding]:
    """Try everything at ``url``, and at every worker that it is said to have; never raises for what
    the engine does.
    """
    front = HttpEngine(url, deadline_s=ASK_S)
    servers = [HttpEngine(worker, deadline_s=ASK_S) for worker in workers]
    asked = servers or [front]
    probes: list[tuple[str, Callable[[], Awaitable[str]]]] = [
        ("generates, with logprobs", lambda: _logprobs(front)),
        ("weight version", lambda: _version(front)),
        ("loads", lambda: _loads(front, asked)),
        ("abort", lambda: _abort(front, asked)),
        ("context length", lambda: _context(asked[0], wanted.context_tokens)),
        ("tokenizer", lambda: _tokenizer(asked[0], wanted)),
    ]
    if wanted.routing is not None:
        shape = wanted.routing
        probes.append(("routing", lambda: _routing(front, shape, url)))
    if wanted.tool_call_parser is not None:
        parser = wanted.tool_call_parser
        probes.append(("tool-call parser", lambda: _parser(asked[0], wanted, parser)))
    try:
        return [await _tried(name, ask) for name, ask in probes]
    finally:
        for engine in (front, *servers):
            await engine.close()


async def _tried(name: str, ask: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(name, True, await ask())
    except (_Trouble, AgentrlError) as error:
        return Finding(name, False, str(error))


async def _generate(engine: HttpEngine, rid: str, tokens: int) -> dict[str, Any]:
    body = {
        "rid": rid,
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": tokens, "temperature": 1.0},
        "return_logprob": True,
    }
    meta = (await engine.ask("/generate", body, deadline_s=ASK_S)).get("meta_info")
    return meta if isinstance(meta, dict) else {}


async def _logprobs(engine: HttpEngine) -> str:
    items = (await _generate(engine, _rid(), 2)).get("output_token_logprobs") or []
    if not items or not all(math.isfinite(item[0]) and item[0] <= 0 for item in items):
        raise _Trouble(
            "answers come without logprobs of the sampled tokens: let nothing between here and the "
            "server drop return_logprob"
        )
    return f"{len(items)} tokens"


async def _version(engine: HttpEngine) -> str:
    version = (await _generate(engine, _rid(), 1)).get("weight_version")
    if version is None:
        raise _Trouble(
            "answers do not say which weights sampled them (meta_info.weight_version): it needs a "
            "newer SGLang"
        )
    if version != "default" and not str(version).isdigit():
        raise _Trouble(
            f"weight_version={version!r} is no number: start the server with --weight-version 0"
        )
    return "0, never updated" if version == "default" else str(version)


async def _loads(front: HttpEngine, servers: Sequence[HttpEngine]) -> str:
    try:
        for server in servers:
            await server.loads()
    except EngineError as error:
        raise _Trouble(f"{error}. {await _mend(front)}") from error
    return "the drain before new weights can see when nothing runs"


async def _abort(front: HttpEngine, servers: Sequence[HttpEngine]) -> str:
    """Begin a long generation and abort it where it runs."""
    rid = _rid()
    running = asyncio.create_task(_generate(front, rid, LONG))
    try:
        await asyncio.wait([running], timeout=BEGUN_S)
        if running.done():
            ended = running.result().get("finish_reason")
            return f"not seen: the request ended before its abort ({ended})"
        for server in servers:
            await server.tell("/abort_request", {"rid": rid}, deadline_s=ASK_S)
        await asyncio.wait([running], timeout=ABORT_S)
        if not running.done():
            raise _Trouble(f"a request ran on {ABORT_S:g} s after its abort. {await _mend(front)}")
        reason = (running.result().get("finish_reason") or {}).get("type")
        if reason != "abort":
            raise _Trouble(f"a request that was aborted ended with {reason!r}")
        return "ends a running request"
    except EngineError as error:
        raise _Trouble(f"{error}. {await _mend(front)}") from error
    finally:
        running.cancel()


async def _mend(front: HttpEngine) -> str:
    """Say what to change where a router stands in front, which knows its workers."""
    try:
        found = (await front.ask("/workers", deadline_s=ASK_S)).get("workers") or []
    except EngineError:
        return "If engine.url is a router, list its servers in engine.workers"
    urls = ",".join(str(worker.get("url")) for worker in found)
    return f"engine.url is a router: set engine.workers=[{urls}]"


async def _context(server: HttpEngine, wanted: int) -> str:
    info = await server.ask("/server_info", deadline_s=ASK_S)
    length = info.get("context_length")
    if length is None:
        tokens = await server.ask("/tokenize", {"prompt": "a"}, deadline_s=ASK_S)
        length = tokens.get("max_model_len")
    if not isinstance(length, int):
        return "the server does not say"
    if length < wanted:
        raise _Trouble(
            f"the server takes {length} tokens, model.max_context_tokens={wanted}: lower it, or "
            f"start the server with --context-length {wanted}"
        )
    return f"{length:,} tokens"


async def _tokenizer(server: HttpEngine, wanted: Wanted) -> str:
    """Compare what the template makes here with what the server makes of the same text."""
    ids = wanted.renderer.render_ids(MESSAGES, tools=TOOLS, add_generation_prompt=True)
    body = {"prompt": wanted.tokenizer.decode(ids), "add_special_tokens": False}
    theirs = (await server.ask("/tokenize", body, deadline_s=ASK_S)).get("tokens")
    if not isinstance(theirs, list):
        raise _Trouble("/tokenize does not answer with tokens: it needs a newer SGLang")
    if theirs == ids:
        return f"{len(ids)} ids of a templated conversation are the same"
    at = next(
        (n for n, (a, b) in enumerate(zip(ids, theirs, strict=False)) if a != b),
        min(len(ids), len(theirs)),
    )
    raise _Trouble(
        f"id {at} of a templated conversation is {_at(ids, at)} here and {_at(theirs, at)} at the "
        "server: set model.tokenizer to the tokenizer of the model that it serves"
    )


def _at(ids: Sequence[int], place: int) -> str:
    return str(ids[place]) if place < len(ids) else "missing"


async def _routing(front: HttpEngine, shape: RoutingShape, url: str) -> str:
    try:
        await probe_routing(front, shape, f"engine.url={url}")
    except RoutingProbeError as error:
        raise _Trouble(str(error)) from error
    return f"{shape.layers} layers, {shape.top_k} experts a token"


async def _parser(server: HttpEngine, wanted: Wanted, parser: str) -> str:
    """Have the server read a call that the model's own template wrote."""
    render, decode = wanted.renderer.render_ids, wanted.tokenizer.decode
    before = decode(render(MESSAGES[:2], tools=TOOLS, add_generation_prompt=True))
    written = decode(render(MESSAGES[:3], tools=TOOLS))
    body = {"text": written[len(before) :], "tools": TOOLS, "tool_call_parser": parser}
    calls = (await server.ask("/parse_function_call", body, deadline_s=ASK_S)).get("calls") or []
    read = [(call.get("name"), _arguments(call.get("parameters"))) for call in calls]
    if read != [("read_file", CALL)]:
        raise _Trouble(
            f"engine.tool_call_parser={parser} reads {read or 'no call'} in a call that the "
            "model's template wrote: choose the parser of the model's own family"
        )
    return f"{parser} reads what the template writes"


def _arguments(written: Any) -> Any:
    try:
        return orjson.loads(written)
    except (orjson.JSONDecodeError, TypeError):
        return written


def _rid() -> str:
    return f"probe:{uuid.uuid4().hex}"
