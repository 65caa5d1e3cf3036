"""Routing from the embedded engine through the gateway: what is stored is what a model of
transformers with the same weights chooses for the same tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from aiohttp import web
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from runners.engines.client import HttpEngine
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.server import EngineServer
from runners.testing.tiny_tokenizer import tiny_tokenizer
from runners.training.routing.shape import read_routing_shape
from runners.trajectory.graph import build_segments
from runners.trajectory.routing import build_segment_routing
from tests.fakes.routing_checks import check_trained_rows, stored_routing
from tests.fakes.running_gateway import Gateway, echo, running_gateway, user
from tests.fakes.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of one shape; the first layer is dense."""
    size = tiny_tokenizer().get_vocab_size()
    return [
        write_tiny_model(
            tmp_path_factory.mktemp("model"), vocab_size=size, seed=seed, num_hidden_layers=3,
            mlp_only_layers=[0],
        )
        for seed in (0, 1)
    ]  # fmt: skip


@pytest.fixture
async def engine(models: list[Path], tokenizer_dir: Path) -> AsyncIterator[HttpEngine]:
    """Serve the first model."""
    core = EngineCore(models[0], tokenizer=tokenizer_dir, cache_tokens=20_000, threads=1)
    runner = web.AppRunner(
        EngineServer(core).application(), handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine = HttpEngine(f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield engine
    await engine.close()
    await core.close()
    await runner.cleanup()


@pytest.fixture
async def gateway(
    engine: HttpEngine, models: list[Path], tokenizer_dir: Path, tmp_path: Path
) -> AsyncIterator[Gateway]:
    """Serve a gateway in front of it."""
    shape = read_routing_shape(models[0])
    assert shape is not None
    async with running_gateway(
        engine.name,
        tokenizer_dir,
        tmp_path / "run",
        routing=asdict(shape),
        max_context_tokens=2000,
    ) as gateway:
        yield gateway


def choose_experts(model: Path, tokens: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return what transformers chooses for a sequence, [T, layers, top_k]; 0 in dense layers."""
    policy = Qwen3MoeForCausalLM.from_pretrained(model)
    found = torch.zeros(len(tokens), 3, 2, dtype=torch.int64)

    def noting(layer: int) -> Callable[..., None]:
        def note(_module: object, _inputs: object, output: tuple[Tensor, Tensor, Tensor]) -> None:
            found[:, layer] = output[2]

        return note

    for index in (1, 2):
        policy.model.layers[index].mlp.gate.register_forward_hook(noting(index))
    with torch.no_grad():
        policy(torch.from_numpy(tokens.astype(np.int64))[None])
    return found.numpy()


async def test_the_rows_of_every_turn_are_those_of_the_weights_that_sampled_it(
    gateway: Gateway, engine: HttpEngine, models: list[Path]
) -> None:
    """Two turns that reuse the prefix, a sub-agent, then other weights, a turn, and a fork."""
    agent = await gateway.session(seed=3)
    messages = [user("fix it")]

    async def take(content: str) -> None:
        answer = await agent.ask(messages, max_tokens=24)
        messages.extend([echo(answer), user(content)])

    await take("go on")
    await take("and then?")
    asked = agent.body([user("look around")], max_tokens=24)
    status, _ = await agent.post("/v1/messages", asked, **{"x-claude-code-agent-id": "a1"})
    assert status == 200
    await engine.update_weights(models[1], 1)
    await take("well?")
    messages[-1] = user("no, otherwise")
    await take("")
    shape = read_routing_shape(models[0])
    assert shape is not None
    assert shape.routed == (1, 2)
    turns = gateway.turns("s1")
    assert len({turn.segment for turn in turns}) >= 2
    assert max(turn.usage["cached_tokens"] for turn in turns) > 0
    versions = check_trained_rows(
        gateway, lambda tokens, version: choose_experts(models[version], tokens), shape
    )
    assert versions == [0, 1]
    assert (await agent.stats())["routing_missing"] == 0


async def test_a_generation_cut_off_in_an_update_is_no_turn_and_the_next_has_all_rows(
    gateway: Gateway, engine: HttpEngine, models: list[Path]
) -> None:
    agent = await gateway.session(seed=3)
    answer = await agent.ask([user("fix it")], max_tokens=8)
    messages = [user("fix it"), echo(answer), user("go on")]
    asked = agent.body(messages, max_tokens=1500)
    asking = asyncio.create_task(agent.post("/v1/messages", asked))
    while not (await engine.loads()).running:
        await asyncio.sleep(0.005)
    await engine.abort_all()
    status, _ = await asking
    assert status != 200
    await engine.update_weights(models[1], 1)
    await agent.ask(messages, max_tokens=8)
    assert len(gateway.turns("s1")) == 2
    shape = read_routing_shape(models[0])
    assert shape is not None
    (chain,) = build_segments(gateway.turns("s1"))
    routing = build_segment_routing(chain, stored_routing(gateway), shape)
    assert routing.valid[:-1].all()
    versions = check_trained_rows(
        gateway, lambda tokens, version: choose_experts(models[version], tokens), shape
    )
    assert versions == [0, 1]
