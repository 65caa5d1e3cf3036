"""The barrier before new weights: a real gateway before a real (embedded) engine."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from runners.campaigns.drain import pause_turns
from runners.engines.client import HttpEngine
from runners.engines.contract import EngineError, SamplingParams
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.server import EngineServer
from runners.engines.resilient import PauseResult
from runners.gateway.refusal import GatewayError
from runners.records.tokenizer import write_tiny_tokenizer
from tests.fakes.running_gateway import Agent, Gateway, read_events, running_gateway, user
from tests.fakes.tiny_model import policy_logprobs, write_tiny_model

LONG, SHORT = 1500, 20
"""Tokens: seconds, and a moment."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def core(model_dir: Path) -> Iterator[EngineCore]:
    core = EngineCore(model_dir, max_running_requests=8, cache_tokens=20_000)
    yield core
    core.shut_down()


@dataclass
class Bench:
    """Everything on loopback."""

    core: EngineCore
    engine: HttpEngine
    gateway: Gateway
    weights: Path

    async def agent(self, name: str, max_new_tokens: int) -> Agent:
        # greedy: a random model that samples comes upon a stop token sooner or later
        sampling = {"max_new_tokens": max_new_tokens, "temperature": 0.0}
        return await self.gateway.session(name, sampling=sampling)

    def versions(self, name: str) -> list[int]:
        return [turn.weight_version for turn in self.gateway.turns(name)]


@pytest.fixture
async def bench(core: EngineCore, model_dir: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    runner = web.AppRunner(
        EngineServer(core).application(), handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    tokenizer = write_tiny_tokenizer(tmp_path / "tokenizer")
    engine = HttpEngine(url)
    async with running_gateway(
        url, tokenizer, tmp_path / "run", max_context_tokens=2048
    ) as gateway:
        yield Bench(core, engine, gateway, model_dir)
    await engine.close()
    await runner.cleanup()


async def running(core: EngineCore, count: int) -> None:
    while (await core.load()).running != count:
        await asyncio.sleep(0.001)


def ask(agent: Agent, **more: Any) -> asyncio.Task[dict[str, Any]]:
    return asyncio.create_task(agent.ask([user("fix it")], max_tokens=LONG, **more))


async def test_a_turn_in_flight_keeps_the_old_weights_and_a_turn_asked_meanwhile_has_the_new(
    bench: Bench,
) -> None:
    old, new = await bench.agent("old", 400), await bench.agent("new", SHORT)
    first = ask(old)
    await running(bench.core, 1)
    async with pause_turns(bench.gateway.admin, bench.engine, deadline_s=30) as pause:
        assert pause == PauseResult(finished=1, aborted=0)
        await first
        second = ask(new)
        await bench.engine.update_weights(bench.weights, 1)
        assert (await bench.engine.loads()).idle
        assert not second.done()
    await second
    assert (bench.versions("old"), bench.versions("new")) == ([0], [1])


async def test_a_turn_that_cannot_finish_in_time_is_sampled_again_with_the_new_weights(
    bench: Bench,
) -> None:
    agent = await bench.agent("s", 400)
    asking = ask(agent)
    await running(bench.core, 1)
    async with pause_turns(bench.gateway.admin, bench.engine, deadline_s=0.01) as pause:
        assert pause == PauseResult(finished=0, aborted=1)
        await bench.engine.update_weights(bench.weights, 1)
    await asking
    (turn,) = bench.gateway.turns("s")
    assert turn.weight_version == 1
    stats = await agent.stats()
    assert (stats["drained"], stats["engine_retries"], stats["aborted"]) == (1, 0, 0)
    assert stats["sampled_tokens"] == len(turn.output_ids), "nothing of the first try is left"


async def test_a_turn_that_is_kept_goes_on_with_the_new_weights_on_what_the_old_ones_sampled(
    bench: Bench, tmp_path: Path
) -> None:
    other = write_tiny_model(tmp_path / "other", seed=1)
    agent = await bench.agent("s", 400)
    asking = ask(agent)
    await running(bench.core, 1)
    await asyncio.sleep(0.2)
    async with pause_turns(bench.gateway.admin, bench.engine, deadline_s=0, keep=True) as pause:
        assert pause == PauseResult(finished=0, aborted=0, kept=1)
        await bench.engine.update_weights(other, 1)
    await asking
    (turn,) = bench.gateway.turns("s")
    assert [version for version, _ in turn.weight_spans] == [0, 1]
    ids = np.concatenate([turn.prompt_new, turn.output_ids])
    versions, begin = turn.output_versions, len(turn.prompt_new)
    for version, directory in ((0, bench.weights), (1, other)):
        expected = policy_logprobs(directory, ids)[begin:]
        assert np.abs(turn.output_logprobs - expected)[versions == version].max() < 1e-4
        assert np.abs(turn.output_logprobs - expected)[versions != version].max() > 1e-2, "it bites"
    stats = await agent.stats()
    assert (stats["drained"], stats["engine_retries"], stats["sampled_tokens"]) == (
        *(0, 0),
        len(turn.output_ids),
    )


async def test_a_stream_is_pinged_through_a_pause(bench: Bench) -> None:
    agent = await bench.agent("s", SHORT)
    body = {**agent.body([user("fix it")]), "stream": True}
    async with pause_turns(bench.gateway.admin, bench.engine, deadline_s=1):
        response = await bench.gateway.http.post(
            bench.gateway.url + "/v1/messages",
            data=orjson.dumps(body),
            headers={"x-api-key": agent.key},
        )
        assert response.status == 200
        head = await response.content.readuntil(b"\n\n")
        pings = [await response.content.readuntil(b"\n\n") for _ in range(3)]
        assert all(b"event: ping" in ping for ping in pings)
    stream = read_events(head + b"".join(pings) + await response.content.read())
    assert stream[-1]["type"] == "message_stop"


async def test_admission_opens_again_if_the_update_fails(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config\.json"):
        async with pause_turns(bench.gateway.admin, bench.engine, deadline_s=1):
            await bench.engine.update_weights(tmp_path, 1)
    await ask(await bench.agent("s", SHORT))
    assert bench.versions("s") == [0]


async def test_a_client_that_leaves_during_a_pause_leaves_nothing_behind(bench: Bench) -> None:
    agent = await bench.agent("s", LONG)
    cut, waiting = ask(agent), ask(await bench.agent("t", SHORT))
    await running(bench.core, 1)
    async with pause_turns(bench.gateway.admin, bench.engine, deadline_s=0):
        for call in (cut, waiting):
            call.cancel()
        await asyncio.wait([cut, waiting])
        while any([(await bench.gateway.admin.stats(name))["in_flight"] for name in ("s", "t")]):
            await asyncio.sleep(0.001)
    assert (await bench.engine.loads()).idle
    assert bench.versions("s") == bench.versions("t") == []
    await ask(await bench.agent("u", SHORT))
    gc.collect()  # an exception that nobody retrieved would be reported here


async def test_a_session_is_finished_and_deleted_during_a_pause(bench: Bench) -> None:
    agent = await bench.agent("s", SHORT)
    async with pause_turns(bench.gateway.admin, bench.engine, deadline_s=1):
        asking = asyncio.create_task(agent.post("/v1/messages", agent.body([user("fix it")])))
        while not (await agent.stats())["in_flight"]:
            await asyncio.sleep(0.001)
        assert (await agent.finish())["segments"] == []
        assert (await asking)[0] == 403
        await bench.gateway.admin.delete("s")


async def test_what_nobody_waits_for_at_the_engine_is_aborted(bench: Bench) -> None:
    stray = asyncio.create_task(bench.engine.generate([1, 2, 3], SamplingParams(LONG), rid="stray"))
    await running(bench.core, 1)
    async with pause_turns(bench.gateway.admin, bench.engine, deadline_s=30):
        assert (await stray).finish_reason == "abort"
        assert (await bench.engine.loads()).idle


async def test_an_engine_that_never_becomes_idle_is_not_updated(bench: Bench) -> None:
    asked: list[str] = []

    async def busy(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 2}]})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", busy)
    async with TestServer(app) as server:
        engine = HttpEngine(str(server.make_url("")))
        with pytest.raises(EngineError, match="0 running and 2 waiting requests"):
            async with pause_turns(bench.gateway.admin, engine, deadline_s=1, idle_s=0.05):
                raise AssertionError("unreachable")
        await engine.close()
    assert asked.count("/abort_request") == 1
    await ask(await bench.agent("s", SHORT))


async def test_a_gateway_that_is_gone_is_said(bench: Bench) -> None:
    gone = type(bench.gateway.admin)("http://127.0.0.1:9", "key")
    with pytest.raises(GatewayError, match="does not answer POST /admin"):
        async with pause_turns(gone, bench.engine, deadline_s=1):
            raise AssertionError("unreachable")
    await gone.close()


async def test_a_pause_needs_the_admin_key_and_a_deadline(bench: Bench) -> None:
    agent = await bench.agent("s", SHORT)
    status, _ = await agent.post("/admin/pause", {"deadline_s": 1})
    assert status == 401
    with pytest.raises(GatewayError, match="deadline_s"):
        await bench.gateway.admin.pause(-1)
