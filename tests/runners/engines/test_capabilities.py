"""Checks of an engine's capabilities: each one is missing once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import orjson
import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.errors import ExitCode
from conf.sections.training import LoraConfig
from runners.engines.capabilities import (
    RoutingProbeError,
    check_capabilities,
    probe_routing,
    require_capabilities,
)
from runners.engines.client import HttpEngine
from runners.engines.contract import EngineError
from runners.engines.server_check import CheckResult, EngineServers, EngineUnfit
from runners.records.routing import RoutingShape
from tests.fakes.sglang_router import Router

SHAPE = RoutingShape(layers=2, top_k=2, experts=8, routed=(0, 1))
ROUTING = RoutingShape(layers=3, top_k=2, experts=64, routed=(1, 2))
LOGPROBS = "generates, with logprobs"
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
async def servers() -> AsyncIterator[list[ScriptedEngine]]:
    async with AsyncExitStack() as exits:
        running = [await exits.enter_async_context(ScriptedEngine()) for _ in range(2)]
        for server in running:
            server.always = Completion("a b<|im_end|>")
            server.shape = SHAPE
            server.long_s = 1.0
        yield running


@pytest.fixture
def server(servers: list[ScriptedEngine]) -> ScriptedEngine:
    return servers[0]


async def run_check(url: str, workers: Sequence[str] = ()) -> dict[str, CheckResult]:
    clients = EngineServers(url, workers)
    try:
        found = await check_capabilities(clients, context_tokens=32768, routing=SHAPE)
    finally:
        await clients.close()
    return {result.name: result for result in found}


def failures(results: dict[str, CheckResult]) -> dict[str, str]:
    return {name: result.detail for name, result in results.items() if not result.ok}


async def test_a_server_with_every_capability_passes(server: ScriptedEngine) -> None:
    found = await run_check(server.url)
    assert failures(found) == {}
    assert list(found) == [
        *("generates, with logprobs", "weight version", "loads", "abort", "context length"),
        "routing",
    ]
    assert found["abort"].detail == "ends a running request"
    assert found["weight version"].detail == "1"
    assert found["context length"].detail == "40,960 tokens"


async def test_a_server_that_is_down_gives_one_result(server: ScriptedEngine) -> None:
    found = failures(await run_check(NOBODY))
    assert list(found) == ["answers"]
    assert "Start the server that engine.url names, or set engine.url" in found["answers"]
    found = failures(await run_check(server.url, [server.url, NOBODY]))
    assert list(found) == ["answers"]
    assert NOBODY in found["answers"]
    assert "set engine.workers" in found["answers"]


async def test_a_router_without_its_servers_fails_with_the_fix(server: ScriptedEngine) -> None:
    async with Router(server) as router:
        found = failures(await run_check(router.url))
        fix = f"engine.url is a router: set engine.workers=[{server.url}]"
        assert fix in found["loads"]
        assert fix in found["abort"]
        assert "drops the field that asks for it" in found["routing"]
        listed = failures(await run_check(router.url, [server.url]))
        assert list(listed) == ["routing"]
        assert router.url in listed["routing"]
        direct = failures(await run_check(server.url, [server.url]))
    assert direct == {}


async def test_a_missing_capability_is_named_with_its_fix(server: ScriptedEngine) -> None:
    server.shape = None
    server.context_length = 1000
    server.weight_version = "abc"
    found = failures(await run_check(server.url))
    assert "--weight-version 0" in found["weight version"]
    assert "--context-length 32768" in found["context length"]
    assert set(found) == {"weight version", "context length", "routing"}


async def test_every_server_is_checked_and_the_failing_one_is_named(
    servers: list[ScriptedEngine],
) -> None:
    urls = [server.url for server in servers]
    servers[1].shape = None
    servers[1].weight_version = "2"
    found = failures(await run_check(urls[0], urls))
    assert set(found) == {"same weights", "routing"}
    assert "weights of several versions (1; 2)" in found["same weights"]
    assert found["routing"].startswith(f"{urls[1]}: ")


async def test_a_server_that_ignores_aborts_fails(server: ScriptedEngine) -> None:
    server.deaf = True
    found = failures(await run_check(server.url))
    assert list(found) == ["abort"]
    assert "ended with 'stop'" in found["abort"]


async def test_a_router_that_spreads_a_session_is_a_warning(
    servers: list[ScriptedEngine],
) -> None:
    urls = [server.url for server in servers]
    async with Router(*servers) as router:
        keeps = await run_check(router.url, urls)
        assert keeps["sessions"].detail == "the router keeps a session at one server"
        router.spreads = True
        spreads = (await run_check(router.url, urls))["sessions"]
    assert (spreads.ok, spreads.fatal) == (False, False)
    assert "over 2 servers" in spreads.detail
    assert "--policy consistent_hashing" in spreads.detail


async def test_every_abort_names_a_request_of_the_server(
    servers: list[ScriptedEngine],
) -> None:
    async with Router(*servers) as router:
        found = await run_check(router.url, [server.url for server in servers])
    assert found["sessions"].ok
    known = {request["rid"] for server in servers for request in server.seen.requests}
    ended = {rid for server in servers for rid in server.seen.aborted}
    assert ended <= known
    assert len(ended) == 5, "the one whose abort is tried, and those of the session"


@pytest.mark.parametrize(
    "meta",
    [
        {"output_token_logprobs": [[None, 1]], "weight_version": "1"},
        {"output_token_logprobs": 7, "finish_reason": "stop"},
    ],
)
async def test_an_answer_of_another_shape_is_a_failure(
    server: ScriptedEngine, meta: dict[str, object]
) -> None:
    server.always = Completion("", raw=orjson.dumps({"meta_info": meta}))
    assert "cannot be judged (TypeError" in failures(await run_check(server.url))[LOGPROBS]


async def test_a_run_starts_only_with_the_capabilities_that_it_needs(
    server: ScriptedEngine,
) -> None:
    async def begins(url: str, *, new_weights: bool) -> None:
        await require_capabilities(
            url, [], context_tokens=32768, routing=None, new_weights=new_weights
        )

    await begins(server.url, new_weights=True)
    async with Router(server) as router:
        await begins(router.url, new_weights=False)
        with pytest.raises(EngineUnfit, match="engine: loads: ") as unfit:
            await begins(router.url, new_weights=True)
    assert unfit.value.exit_code == ExitCode.PREFLIGHT
    with pytest.raises(EngineError, match=r"Start the server that engine\.url names"):
        await begins(NOBODY, new_weights=True)


@pytest.mark.parametrize("version", [None, "nightly"])
async def test_only_training_refuses_a_weight_version_that_is_not_known(
    server: ScriptedEngine, version: str | None
) -> None:
    logprobs = {"output_token_logprobs": [[-1.0, 1, None]], "weight_version": version}
    server.always = Completion("", raw=orjson.dumps({"meta_info": logprobs}))
    server.deaf = True  # what is answered at once cannot be aborted

    async def begins(*, new_weights: bool) -> None:
        await require_capabilities(
            server.url, [], context_tokens=32768, routing=None, new_weights=new_weights
        )

    await begins(new_weights=False)
    with pytest.raises(EngineUnfit, match=r"engine: weight version: .*training"):
        await begins(new_weights=True)


# --- routing ------------------------------------------------------------------------------------


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedEngine]:
    """Serve an engine with routing."""
    async with ScriptedEngine() as engine:
        engine.shape = ROUTING
        yield engine


@pytest.fixture
async def engine(scripted: ScriptedEngine) -> AsyncIterator[HttpEngine]:
    """Connect to it."""
    client = HttpEngine(scripted.url)
    yield client
    await client.close()


async def test_an_engine_that_returns_the_requested_routing_passes(
    engine: HttpEngine, scripted: ScriptedEngine
) -> None:
    scripted.say("ab")
    await probe_routing(engine, ROUTING, "engine")
    (asked,) = scripted.seen.requests
    assert asked["routed_experts_start_len"] == 1


@pytest.mark.parametrize(
    ("sent", "shape", "fix"),
    [
        ("none", ROUTING, "--enable-return-routed-experts. An old router"),
        ("whole", ROUTING, "ignores routed_experts_start_len"),
        ("short", ROUTING, "another model than model.path describes"),
        ("sent", replace(ROUTING, layers=4), "another model than model.path describes"),
        ("sent", replace(ROUTING, experts=2), "another model than model.path describes"),
        ("sent", replace(ROUTING, routed=(0, 1, 2)), "layer 0 routes a token twice to one expert"),
    ],
)
async def test_wrong_routing_is_refused_with_the_fix(
    sent: str, shape: RoutingShape, fix: str, engine: HttpEngine, scripted: ScriptedEngine
) -> None:
    scripted.say(Completion("ab", routing=sent))
    with pytest.raises(RoutingProbeError, match="routing_replay=off") as caught:
        await probe_routing(engine, shape, "engine.url=http://there")
    assert fix in str(caught.value)
    assert "engine.url=http://there" in str(caught.value)
    assert caught.value.exit_code is ExitCode.PREFLIGHT


async def test_an_engine_that_does_not_answer_is_an_engine_error(engine: HttpEngine) -> None:
    with pytest.raises(EngineError):
        await probe_routing(engine, ROUTING, "engine")


LORA = LoraConfig(rank=8, alpha=16, targets=("q_proj", "o_proj"))


async def check_adapters(url: str, workers: Sequence[str] = ()) -> CheckResult:
    clients = EngineServers(url, workers)
    try:
        found = await check_capabilities(clients, context_tokens=64, routing=None, lora=LORA)
    finally:
        await clients.close()
    return {result.name: result for result in found}["adapters"]


async def test_a_server_that_loads_adapters_passes_and_none_is_loaded(
    server: ScriptedEngine,
) -> None:
    server.adapters = {}
    found = await check_adapters(server.url)
    assert found.ok, found.detail
    assert server.adapters == {}


async def test_a_server_without_adapters_fails_with_its_flags(server: ScriptedEngine) -> None:
    found = await check_adapters(server.url)
    flags = "--enable-lora --max-lora-rank 8 --lora-target-modules q_proj o_proj"
    assert not found.ok
    assert flags in found.detail


async def test_a_router_that_drops_the_adapters_name_fails(server: ScriptedEngine) -> None:
    server.adapters = {}
    async with Router(server) as router:
        found = await check_adapters(router.url, [server.url])
    assert not found.ok
    assert "lora_path" in found.detail
