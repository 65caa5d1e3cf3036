"""What an engine can do, tried: each thing that can be missing is missing once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import orjson
import pytest

from conf.errors import ExitCode
from runners.engines.capabilities import check_capabilities, require_capabilities
from runners.engines.contract import EngineError
from runners.engines.server_check import CheckResult, EngineServers, EngineUnfit
from runners.trajectory.routing import RoutingShape
from tests.fakes.scripted_engine import Completion, ScriptedEngine
from tests.fakes.sglang_router import Router

SHAPE = RoutingShape(layers=2, top_k=2, experts=8, routed=(0, 1))
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
    return {finding.name: finding for finding in found}


def trouble(findings: dict[str, CheckResult]) -> dict[str, str]:
    return {name: finding.detail for name, finding in findings.items() if not finding.ok}


async def test_a_server_that_can_do_everything_has_no_trouble(server: ScriptedEngine) -> None:
    found = await run_check(server.url)
    assert trouble(found) == {}
    assert list(found) == [
        *("generates, with logprobs", "weight version", "loads", "abort", "context length"),
        "routing",
    ]
    assert found["abort"].detail == "ends a running request"
    assert found["weight version"].detail == "1"
    assert found["context length"].detail == "40,960 tokens"


async def test_a_server_that_is_down_is_all_that_is_said(server: ScriptedEngine) -> None:
    found = trouble(await run_check(NOBODY))
    assert list(found) == ["answers"]
    assert "Start the server that engine.url names, or set engine.url" in found["answers"]
    found = trouble(await run_check(server.url, [server.url, NOBODY]))
    assert list(found) == ["answers"]
    assert NOBODY in found["answers"]
    assert "set engine.workers" in found["answers"]


async def test_a_router_alone_is_told_from_its_servers(server: ScriptedEngine) -> None:
    async with Router(server) as router:
        found = trouble(await run_check(router.url))
        mend = f"engine.url is a router: set engine.workers=[{server.url}]"
        assert mend in found["loads"]
        assert mend in found["abort"]
        assert "drops the field that asks for it" in found["routing"]
        listed = trouble(await run_check(router.url, [server.url]))
        assert list(listed) == ["routing"]
        assert router.url in listed["routing"]
        direct = trouble(await run_check(server.url, [server.url]))
    assert direct == {}


async def test_what_is_missing_is_named_with_its_mend(server: ScriptedEngine) -> None:
    server.shape = None
    server.context_length = 1000
    server.weight_version = "abc"
    found = trouble(await run_check(server.url))
    assert "--weight-version 0" in found["weight version"]
    assert "--context-length 32768" in found["context length"]
    assert set(found) == {"weight version", "context length", "routing"}


async def test_every_server_is_tried_and_the_one_with_the_fault_is_named(
    servers: list[ScriptedEngine],
) -> None:
    urls = [server.url for server in servers]
    servers[1].shape = None
    servers[1].weight_version = "2"
    found = trouble(await run_check(urls[0], urls))
    assert set(found) == {"weight version", "routing"}
    assert "weights of several versions (1; 2)" in found["weight version"]
    assert found["routing"].startswith(f"{urls[1]}: ")


async def test_a_server_that_is_deaf_to_aborts_is_found(server: ScriptedEngine) -> None:
    server.deaf = True
    found = trouble(await run_check(server.url))
    assert list(found) == ["abort"]
    assert "ended with 'stop'" in found["abort"]


async def test_a_router_that_spreads_a_session_is_found_which_stops_no_run(
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


async def test_every_request_that_is_ended_is_named_as_the_server_knows_it(
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
async def test_an_answer_of_another_shape_is_a_finding(
    server: ScriptedEngine, meta: dict[str, object]
) -> None:
    server.always = Completion("", raw=orjson.dumps({"meta_info": meta}))
    assert "cannot be judged (TypeError" in trouble(await run_check(server.url))[LOGPROBS]


async def test_a_run_begins_only_with_an_engine_that_can_do_what_it_needs(
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
