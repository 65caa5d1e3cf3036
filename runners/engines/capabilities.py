"""Check that an SGLang server, or a router in front of several, can do what a run needs.

Every capability is tried, not read from a version: flags, routers and releases remove them without
an error.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from conf.errors import AgentrlError, ExitCode
from conf.sections.training import LoraConfig
from runners.engines.adapters import adapter_arguments
from runners.engines.client import UNNUMBERED_VERSION, HttpEngine, routing_key
from runners.engines.contract import Engine, EngineError, SamplingParams
from runners.engines.server_check import (
    ANSWERS,
    REQUEST_DEADLINE_S,
    CheckFailed,
    CheckResult,
    EngineServers,
    check_each,
    no_answer,
    require_checks,
    run_check,
)
from runners.records.routing import RoutingShape, build_turn_routing

ABORT_DEADLINE_S = 10.0
"""From an abort to the answer that reports it: a server looks at aborts between two steps."""
STARTED_S = 0.5
"""Time that a request gets to reach a server before we look for it there."""
LONG_TOKENS = 4096
"""Length of a request that is aborted: more than a server samples before the abort arrives."""
SESSION_CALLS = 4
"""Concurrent calls of one session, to see whether a router keeps them together."""
PROMPT = [1, 2, 3, 4]
LOADS, ABORT, VERSION = "loads", "abort", "weight version"
TRAINING_NEEDS = (LOADS, ABORT, VERSION)
"""Checks that only a run with new weights needs: it drains, and it must know which weights sampled
a token. Without new weights, a call that is given up closes its connection.
"""

ROUTING_PROMPT = [0, 1, 2]
ROUTING_START = 1
"""Not 0: the check also asks whether the rows begin where they are wanted."""
ROUTING_NEW_TOKENS = 2
ROUTING_OFF = "or set routing_replay=off"


class RoutingProbeError(AgentrlError):
    """The engine does not return the routing that is to be replayed."""

    exit_code = ExitCode.PREFLIGHT


async def require_capabilities(
    url: str,
    workers: Sequence[str],
    *,
    context_tokens: int,
    routing: RoutingShape | None,
    new_weights: bool,
    lora: LoraConfig | None = None,
) -> None:
    """Return if the engine can do what a starting run needs.

    ``new_weights``: the run will update the weights, so it needs loads (to see the drain), aborts
    and weight versions. ``lora``: adapters that it will load. Raises EngineError if the engine does
    not answer, EngineUnfit with every other failure.
    """
    servers = EngineServers(url, workers)
    try:
        results = await check_capabilities(
            servers, context_tokens=context_tokens, routing=routing, lora=lora
        )
    finally:
        await servers.close()
    require_checks(results, unneeded=() if new_weights else TRAINING_NEEDS)


async def check_capabilities(
    servers: EngineServers,
    *,
    context_tokens: int,
    routing: RoutingShape | None,
    lora: LoraConfig | None = None,
) -> list[CheckResult]:
    """Run every check that needs no tokenizer.

    An engine that does not answer gets one result, ``answers``; otherwise that one is left out.
    """

    async def context(server: HttpEngine) -> str:
        return await check_context(server, context_tokens)

    answers = await run_check(ANSWERS, lambda: check_answers(servers))
    if not answers.ok:
        return [answers]
    limits = await asyncio.gather(*map(_read_limit, servers.servers))
    known = [limit // 2 for limit in (*limits, context_tokens) if limit is not None]
    length = min(LONG_TOKENS, *known)
    entry_points = servers.entry_points
    results = [
        await run_check(
            "generates, with logprobs", lambda: check_each(entry_points, _check_logprobs)
        ),
        await run_check(VERSION, lambda: check_each(entry_points, _check_version)),
        await run_check(LOADS, lambda: _check_loads(servers)),
        await run_check(ABORT, lambda: _check_abort(servers, length)),
        await run_check("context length", lambda: check_each(servers.servers, context)),
    ]
    if len(entry_points) > 1:
        results.append(await run_check("same weights", lambda: _check_same_weights(entry_points)))
    if servers.routed and len(servers.servers) > 1:
        results.append(
            await run_check("sessions", lambda: _check_sessions(servers, length), fatal=False)
        )
    if routing is not None:
        results.append(await run_check("routing", lambda: _check_routing(entry_points, routing)))
    if lora is not None:
        check = partial(_check_adapters, lora=lora)
        results.append(await run_check("adapters", lambda: check_each(entry_points, check)))
    return results


async def probe_routing(engine: Engine, shape: RoutingShape, name: str) -> None:
    """Sample two tokens and check the routing that comes with them; ``name`` is for messages.

    Neither a server that was started without the flag, nor a router that drops the field that asks
    for routing (sglang-router 0.3 does, smg 1.13 does not), reports it: the answer just has none.
    Raises RoutingProbeError with the fix if the routing does not fit ``shape``, EngineError if the
    engine does not answer.
    """
    params = SamplingParams(max_new_tokens=ROUTING_NEW_TOKENS, routing_start=ROUTING_START)
    rid = f"routing-probe:{uuid.uuid4().hex}"
    answer = await engine.generate(ROUTING_PROMPT, params, rid=rid)
    path = np.concatenate([np.array(ROUTING_PROMPT, np.int32), answer.output_ids])
    if answer.routing is None:
        raise RoutingProbeError(
            f"routing_replay=rollout, but {name} returns no routing. A server needs "
            "--enable-return-routed-experts. An old router (sglang-router 0.3) drops the field "
            "that asks for it: take a newer one, or list the servers themselves in engine.workers "
            "and set engine.url to one of them; " + ROUTING_OFF
        )
    # one row per token but the last, which was never an input
    width = shape.layers * shape.top_k
    if answer.routing.size == (len(path) - 1) * width:
        raise RoutingProbeError(
            f"{name} ignores routed_experts_start_len, so each turn would return the routing of "
            f"its whole history again: it needs a newer SGLang; {ROUTING_OFF}"
        )
    try:
        routing = build_turn_routing(
            answer.routing, path, ROUTING_START, shape, answer.weight_version
        )
    except ValueError as error:
        raise RoutingProbeError(
            f"{name} routes another model than model.path describes ({error}): point both to the "
            f"same; {ROUTING_OFF}"
        ) from error
    chosen = np.sort(routing.experts[:, list(shape.routed)], axis=-1)
    twice = (chosen[..., 1:] == chosen[..., :-1]).any(axis=(0, 2))
    if twice.any():
        layer = shape.routed[int(np.argmax(twice))]
        raise RoutingProbeError(
            f"{name} says that layer {layer} routes a token twice to one expert: its routing is "
            f"incomplete, as it is with pipeline parallelism or a fused router; {ROUTING_OFF}"
        )


async def check_answers(servers: EngineServers) -> str:
    """Return the servers that answer; raises CheckFailed if one does not."""
    for engine in servers.entry_points:
        key = "engine.url" if engine is servers.front else "engine.workers"
        try:
            await engine.check_health()
        except EngineError as error:
            raise no_answer(error, key) from error
    return ", ".join(engine.name for engine in servers.entry_points)


async def _generate(
    engine: HttpEngine, rid: str, tokens: int, prompt: Sequence[int] = PROMPT
) -> dict[str, Any]:
    """Sample ``tokens`` tokens; return the answer's ``meta_info`` as it came."""
    body = {
        "rid": rid,
        "input_ids": list(prompt),
        "sampling_params": {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True},
        "return_logprob": True,
    }
    answer = await engine.request_json(
        "/generate", body, deadline_s=REQUEST_DEADLINE_S, headers=routing_key(rid)
    )
    meta = answer.get("meta_info")
    return meta if isinstance(meta, dict) else {}


async def _check_logprobs(engine: HttpEngine) -> str:
    items = (await _generate(engine, _new_rid(), 2)).get("output_token_logprobs") or []
    if not items or not all(math.isfinite(item[0]) and item[0] <= 0 for item in items):
        raise CheckFailed(
            "answers come without logprobs of the sampled tokens: let nothing between here and the "
            "server drop return_logprob"
        )
    return f"{len(items)} tokens"


async def _check_adapters(engine: HttpEngine, lora: LoraConfig) -> str:
    """Name adapters that were never loaded: a server that knows adapters refuses the request."""
    rid = _new_rid()
    body = {"rid": rid, "input_ids": PROMPT, "sampling_params": {"max_new_tokens": 1}}
    try:
        await engine.request_json(
            "/generate",
            {**body, "return_logprob": True, "lora_path": rid},
            deadline_s=REQUEST_DEADLINE_S,
            headers=routing_key(rid),
        )
    except EngineError as error:
        if error.status != 400:
            raise
        if "not enabled" in str(error):
            flags = " ".join(adapter_arguments(lora))
            raise CheckFailed(
                f"the server loads no adapters (trainer.lora.rank={lora.rank}): start it with "
                f"{flags}"
            ) from error
        return "takes the adapters that a request names"
    raise CheckFailed(
        "the adapters that a request names (lora_path) are ignored: it needs a newer SGLang, or a "
        "router that passes them on; list the servers themselves in engine.workers"
    )


async def _check_same_weights(engines: Sequence[HttpEngine]) -> str:
    versions = {str(await _ask_version(engine)): None for engine in engines}
    if len(versions) > 1:
        raise CheckFailed(
            f"the servers have weights of several versions ({'; '.join(versions)}), and the older "
            "ones would be treated as lost: restart them all with --weight-version 0"
        )
    return "one version"


async def _check_version(engine: HttpEngine) -> str:
    version = await _ask_version(engine)
    if version is None:
        raise CheckFailed(
            "answers do not say which weights sampled them (meta_info.weight_version), which "
            "training must know: it needs a newer SGLang, or a router that passes it on"
        )
    if version != UNNUMBERED_VERSION and not str(version).isdigit():
        raise CheckFailed(
            f"weight_version={version!r} is no number, so training could not tell which weights "
            "sampled a token: start the server with --weight-version 0"
        )
    return "0, never updated" if version == UNNUMBERED_VERSION else str(version)


async def _ask_version(engine: HttpEngine) -> object:
    return (await _generate(engine, _new_rid(), 1)).get("weight_version")


async def _check_loads(servers: EngineServers) -> str:
    try:
        for server in servers.servers:
            await server.loads()
    except EngineError as error:
        raise CheckFailed(f"{error}. {await _describe_fix(servers.front)}") from error
    return "the drain before new weights can see when nothing runs"


@asynccontextmanager
async def _running(
    servers: EngineServers, prompts: Mapping[str, Sequence[int]], tokens: int
) -> AsyncIterator[list[asyncio.Task[dict[str, Any]]]]:
    """Start a long generation for each request id; after the block none of them runs."""
    calls = {
        rid: asyncio.create_task(_generate(servers.front, rid, tokens, prompt))
        for rid, prompt in prompts.items()
    }
    try:
        await asyncio.wait(calls.values(), timeout=STARTED_S)
        yield list(calls.values())
    finally:
        # one abort per id at every server: which one has it is the router's choice, and a server
        # ignores an id that it does not know
        left = [rid for rid, call in calls.items() if not call.done()]
        await asyncio.gather(*(server.abort(rid) for rid in left for server in servers.servers))
        for call in calls.values():
            call.cancel()
        await asyncio.gather(*calls.values(), return_exceptions=True)


async def _check_abort(servers: EngineServers, tokens: int) -> str:
    """Start a long generation and abort it at the servers."""
    rid = _new_rid()
    try:
        async with _running(servers, {rid: PROMPT}, tokens) as [running]:
            if running.done():
                ended = running.result().get("finish_reason")
                return f"not seen: the request ended before its abort ({ended})"
            for server in servers.servers:
                await server.post("/abort_request", {"rid": rid}, deadline_s=REQUEST_DEADLINE_S)
            await asyncio.wait([running], timeout=ABORT_DEADLINE_S)
            if not running.done():
                raise CheckFailed(
                    f"a request ran on {ABORT_DEADLINE_S:g} s after its abort. "
                    f"{await _describe_fix(servers.front)}"
                )
            reason = (running.result().get("finish_reason") or {}).get("type")
            if reason != "abort":
                raise CheckFailed(f"a request that was aborted ended with {reason!r}")
            return "ends a running request"
    except EngineError as error:
        raise CheckFailed(f"{error}. {await _describe_fix(servers.front)}") from error


async def _describe_fix(front: HttpEngine) -> str:
    """Return what to change if ``front`` is a router, which lists its workers."""
    try:
        answer = await front.request_json("/workers", deadline_s=REQUEST_DEADLINE_S)
    except EngineError:
        return "If engine.url is a router, list its servers in engine.workers"
    urls = ",".join(str(worker.get("url")) for worker in answer.get("workers") or [])
    return f"engine.url is a router: set engine.workers=[{urls}]"


async def _read_limit(server: HttpEngine) -> int | None:
    """Return the greatest length of a sequence in tokens; None if the server does not report it."""
    for path, body, key in (
        ("/server_info", None, "context_length"),
        ("/tokenize", {"prompt": "a"}, "max_model_len"),  # where /server_info leaves it null
    ):
        with suppress(EngineError):
            answer = await server.request_json(path, body, deadline_s=REQUEST_DEADLINE_S)
            limit = answer.get(key)
            if isinstance(limit, int):
                return limit
    return None


async def check_context(server: HttpEngine, wanted: int) -> str:
    """Return the longest sequence that the server takes; raises CheckFailed if it is too short."""
    limit = await _read_limit(server)
    if limit is None:
        return "the server does not report it"
    if limit < wanted:
        raise CheckFailed(
            f"the server takes {limit} tokens, model.max_context_tokens={wanted}: lower it, or "
            f"start the server with --context-length {wanted}"
        )
    return f"{limit:,} tokens"


async def _check_sessions(servers: EngineServers, tokens: int) -> str:
    """Start several generations of one session and count the servers that run them."""
    before = [(await server.loads()).running for server in servers.servers]
    if any(before):
        return "not seen: the servers have other work"
    rid = _new_rid()
    # prompts that share nothing: a router that goes by prefixes has no reason to keep them together
    prompts = {f"{rid}:{n}": [10 + n, 20 + n, 30 + n] for n in range(SESSION_CALLS)}
    async with _running(servers, prompts, tokens):
        loads = [await server.loads() for server in servers.servers]
    busy = sum(not load.idle for load in loads)
    if not busy:
        return "not seen: the requests ended too soon"
    if busy > 1:
        raise CheckFailed(
            f"the router spreads a session over {busy} servers, and each turn computes its history "
            "again: start it with --policy consistent_hashing or manual, or set engine.url to one "
            "of engine.workers"
        )
    return "the router keeps a session at one server"


async def _check_routing(engines: Sequence[HttpEngine], shape: RoutingShape) -> str:
    async def check(engine: HttpEngine) -> str:
        try:
            await probe_routing(engine, shape, f"engine {engine.name}")
        except RoutingProbeError as error:
            raise CheckFailed(str(error)) from error
        return f"{shape.layers} layers, {shape.top_k} experts a token"

    return await check_each(engines, check)


def _new_rid() -> str:
    return f"probe-{uuid.uuid4().hex}"
