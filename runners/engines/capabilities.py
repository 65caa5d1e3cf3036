"""What an SGLang server, or a router in front of several, must be able to do for a run, each thing
tried.

Capabilities are tried, not read off a version: flags, routers and releases take them away without a
word.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from conf.errors import AgentrlError, ExitCode
from runners.engines.client import UNNUMBERED_VERSION, HttpEngine, routing_key
from runners.engines.contract import EngineError
from runners.engines.routing_probe import RoutingProbeError, probe_routing
from runners.trajectory.routing import RoutingShape

ASK_S = 30.0
ABORT_S = 10.0
"""From an abort to the answer that says so; a server looks at aborts between two steps."""
BEGUN_S = 0.5
"""A request gets so long to be at its worker before it is looked for there."""
LONG = 4096
"""Tokens of a request that is aborted: more than a server samples meanwhile."""
CALLS = 4
"""Of one session, at the same time, to see whether a router keeps them together."""
PROMPT = [1, 2, 3, 4]
LOADS, ABORT = "loads", "abort"


class EngineUnfit(AgentrlError):
    """The engine cannot do what a run needs."""

    exit_code = ExitCode.PREFLIGHT


class Trouble(Exception):
    """What was tried failed; with the mend."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried."""

    name: str
    ok: bool
    detail: str
    """What was found; for a problem, with the mend."""
    fatal: bool = True
    """A problem of it stops a run."""


Ask = Callable[[], Awaitable[str]]


async def tried(name: str, ask: Ask, *, fatal: bool = True) -> Finding:
    """Try one thing; whatever the engine answers is a finding."""
    try:
        return Finding(name, True, await ask())
    except (Trouble, AgentrlError) as error:
        return Finding(name, False, " ".join(str(error).split()), fatal)
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # not an answer we know
        kind = type(error).__name__
        return Finding(name, False, f"the answer cannot be judged ({kind}: {error})", fatal)


def refuse_trouble(findings: Iterable[Finding]) -> None:
    """Raise EngineUnfit with everything that the engine cannot do, if there is anything."""
    trouble = [f"engine: {f.name}: {f.detail}" for f in findings if not f.ok and f.fatal]
    if trouble:
        raise EngineUnfit("\n".join(trouble))


async def require(
    url: str,
    workers: Sequence[str],
    *,
    context_tokens: int,
    routing: RoutingShape | None,
    new_weights: bool,
) -> None:
    """Return if the engine can do what a run needs that is just beginning; ``new_weights``: the run
    will change its weights.

    Raises EngineError if it does not answer, EngineUnfit with everything that it cannot do.
    """
    fleet = Fleet(url, workers)
    try:
        found = await capabilities(fleet, context_tokens=context_tokens, routing=routing)
    finally:
        await fleet.close()
    if not found[0].ok:
        raise EngineError(found[0].detail, retryable=True, unreachable=True)
    # without new weights nothing is drained, and a call that is given up closes its connection
    spared = () if new_weights else (LOADS, ABORT)
    refuse_trouble(finding for finding in found if finding.name not in spared)


class Fleet:
    """The clients of an engine: of its ``url``, and of the servers that are said to make it up."""

    def __init__(self, url: str, workers: Sequence[str]) -> None:
        self.front = HttpEngine(url, deadline_s=ASK_S)
        self.servers = [HttpEngine(worker, deadline_s=ASK_S) for worker in workers] or [self.front]
        self.routed = bool(workers) and url.rstrip("/") not in workers
        """Whether ``url`` is a router in front of the servers."""

    @property
    def ways(self) -> list[HttpEngine]:
        """All that generations could go through."""
        return [self.front, *self.servers] if self.routed else self.servers

    async def close(self) -> None:
        """Close the connections."""
        for engine in {self.front, *self.servers}:
            await engine.close()


async def each(engines: Sequence[HttpEngine], ask: Callable[[HttpEngine], Awaitable[str]]) -> str:
    """Ask all; return what they say. Raises Trouble with the name of the one that has it."""
    said: dict[str, None] = {}
    for engine in engines:
        try:
            said[await ask(engine)] = None
        except Trouble as error:
            raise Trouble(f"{engine.name}: {error}" if len(engines) > 1 else str(error)) from error
    return "; ".join(said)


async def capabilities(
    fleet: Fleet, *, context_tokens: int, routing: RoutingShape | None
) -> list[Finding]:
    """Try everything that needs no tokenizer; if the engine does not answer at all, that alone."""

    async def context(server: HttpEngine) -> str:
        return await _context(server, context_tokens)

    answers = await tried("answers", lambda: _answers(fleet))
    if not answers.ok:
        return [answers]
    limits = await asyncio.gather(*map(_limit, fleet.servers))
    length = min(LONG, *(limit // 2 for limit in (*limits, context_tokens) if limit is not None))
    found = [
        await tried("generates, with logprobs", lambda: each(fleet.ways, _logprobs)),
        await tried("weight version", lambda: _versions(fleet.ways)),
        await tried(LOADS, lambda: _loads(fleet)),
        await tried(ABORT, lambda: _abort(fleet, length)),
        await tried("context length", lambda: each(fleet.servers, context)),
    ]
    if fleet.routed and len(fleet.servers) > 1:
        found.append(await tried("sessions", lambda: _sessions(fleet, length), fatal=False))
    if routing is not None:
        found.append(await tried("routing", lambda: _routing(fleet.ways, routing)))
    return found


async def _answers(fleet: Fleet) -> str:
    for engine in fleet.ways:
        key = "engine.url" if engine is fleet.front else "engine.workers"
        try:
            await engine.check_health()
        except EngineError as error:
            raise Trouble(
                f"{error}. Start the server that {key} names, or set {key} to the address of one "
                "that runs"
            ) from error
    return ", ".join(engine.name for engine in fleet.ways)


async def _generate(
    engine: HttpEngine, rid: str, tokens: int, prompt: Sequence[int] = PROMPT
) -> dict[str, Any]:
    body = {
        "rid": rid,
        "input_ids": list(prompt),
        "sampling_params": {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True},
        "return_logprob": True,
    }
    answer = await engine.ask("/generate", body, deadline_s=ASK_S, headers=routing_key(rid))
    meta = answer.get("meta_info")
    return meta if isinstance(meta, dict) else {}


async def _logprobs(engine: HttpEngine) -> str:
    items = (await _generate(engine, _rid(), 2)).get("output_token_logprobs") or []
    if not items or not all(math.isfinite(item[0]) and item[0] <= 0 for item in items):
        raise Trouble(
            "answers come without logprobs of the sampled tokens: let nothing between here and the "
            "server drop return_logprob"
        )
    return f"{len(items)} tokens"


async def _versions(engines: Sequence[HttpEngine]) -> str:
    found = await each(engines, _version)
    if ";" in found:
        raise Trouble(
            f"the servers have weights of several versions ({found}), and those behind would be "
            "taken for gone: start them anew, all with --weight-version 0"
        )
    return found


async def _version(engine: HttpEngine) -> str:
    version = (await _generate(engine, _rid(), 1)).get("weight_version")
    if version is None:
        raise Trouble(
            "answers do not say which weights sampled them (meta_info.weight_version): it needs a "
            "newer SGLang"
        )
    if version != UNNUMBERED_VERSION and not str(version).isdigit():
        raise Trouble(
            f"weight_version={version!r} is no number: start the server with --weight-version 0"
        )
    return "0, never updated" if version == UNNUMBERED_VERSION else str(version)


async def _loads(fleet: Fleet) -> str:
    try:
        for server in fleet.servers:
            await server.loads()
    except EngineError as error:
        raise Trouble(f"{error}. {await _mend(fleet.front)}") from error
    return "the drain before new weights can see when nothing runs"


@asynccontextmanager
async def _running(
    fleet: Fleet, prompts: Mapping[str, Sequence[int]], tokens: int
) -> AsyncIterator[list[asyncio.Task[dict[str, Any]]]]:
    """Begin a long generation for each request id; after the block none of them runs on."""
    calls = {
        rid: asyncio.create_task(_generate(fleet.front, rid, tokens, prompt))
        for rid, prompt in prompts.items()
    }
    try:
        await asyncio.wait(calls.values(), timeout=BEGUN_S)
        yield list(calls.values())
    finally:
        # each by its own id: a server takes no notice of an id that it does not know
        left = [rid for rid, call in calls.items() if not call.done()]
        await asyncio.gather(*(server.abort(rid) for rid in left for server in fleet.servers))
        for call in calls.values():
            call.cancel()
        await asyncio.gather(*calls.values(), return_exceptions=True)


async def _abort(fleet: Fleet, tokens: int) -> str:
    """Begin a long generation and abort it where it runs."""
    rid = _rid()
    try:
        async with _running(fleet, {rid: PROMPT}, tokens) as [running]:
            if running.done():
                ended = running.result().get("finish_reason")
                return f"not seen: the request ended before its abort ({ended})"
            for server in fleet.servers:
                await server.tell("/abort_request", {"rid": rid}, deadline_s=ASK_S)
            await asyncio.wait([running], timeout=ABORT_S)
            if not running.done():
                raise Trouble(
                    f"a request ran on {ABORT_S:g} s after its abort. {await _mend(fleet.front)}"
                )
            reason = (running.result().get("finish_reason") or {}).get("type")
            if reason != "abort":
                raise Trouble(f"a request that was aborted ended with {reason!r}")
            return "ends a running request"
    except EngineError as error:
        raise Trouble(f"{error}. {await _mend(fleet.front)}") from error


async def _mend(front: HttpEngine) -> str:
    """Say what to change where a router stands in front, which knows its workers."""
    try:
        found = (await front.ask("/workers", deadline_s=ASK_S)).get("workers") or []
    except EngineError:
        return "If engine.url is a router, list its servers in engine.workers"
    urls = ",".join(str(worker.get("url")) for worker in found)
    return f"engine.url is a router: set engine.workers=[{urls}]"


async def _limit(server: HttpEngine) -> int | None:
    """Return how many tokens a sequence may have; None if the server does not say."""
    for path, body, key in (
        ("/server_info", None, "context_length"),
        ("/tokenize", {"prompt": "a"}, "max_model_len"),
    ):
        with suppress(EngineError):
            found = (await server.ask(path, body, deadline_s=ASK_S)).get(key)
            if isinstance(found, int):
                return found
    return None


async def _context(server: HttpEngine, wanted: int) -> str:
    limit = await _limit(server)
    if limit is None:
        return "the server does not say"
    if limit < wanted:
        raise Trouble(
            f"the server takes {limit} tokens, model.max_context_tokens={wanted}: lower it, or "
            f"start the server with --context-length {wanted}"
        )
    return f"{limit:,} tokens"


async def _sessions(fleet: Fleet, tokens: int) -> str:
    """Begin several generations of one session, and look where they run."""
    before = [(await server.loads()).running for server in fleet.servers]
    if any(before):
        return "not seen: the servers have other work"
    rid = _rid()
    # prompts that share nothing: a router that goes by prefixes has no reason to keep them together
    prompts = {f"{rid}:{n}": [10 + n, 20 + n, 30 + n] for n in range(CALLS)}
    async with _running(fleet, prompts, tokens):
        loads = [await server.loads() for server in fleet.servers]
    busy = sum(not load.idle for load in loads)
    if not busy:
        return "not seen: the requests ended too soon"
    if busy > 1:
        raise Trouble(
            f"the router spreads a session over {busy} servers, and each turn computes its history "
            "again: start it with --policy consistent_hashing or manual, or set engine.url to one "
            "of engine.workers"
        )
    return "the router keeps a session at one server"


async def _routing(engines: Sequence[HttpEngine], shape: RoutingShape) -> str:
    async def ask(engine: HttpEngine) -> str:
        try:
            await probe_routing(engine, shape, f"engine {engine.name}")
        except RoutingProbeError as error:
            raise Trouble(str(error)) from error
        return f"{shape.layers} layers, {shape.top_k} experts a token"

    return await each(engines, ask)


def _rid() -> str:
    return f"probe-{uuid.uuid4().hex}"
