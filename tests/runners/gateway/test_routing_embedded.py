"""Routing from the embedded engine through the gateway: what is stored is what a model of
transformers with the same weights chooses for the same tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from aiohttp import web
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen3MoeForCausalLM

from conf.compose import compose
from runners.engines.client import HttpEngine
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.server import EngineServer
from runners.records.graph import build_segments
from runners.records.routing import build_segment_routing
from runners.records.tokenizer import tiny_tokenizer
from runners.training.routing.shape import read_routing_shape
from runners.training.step_samples import fan_out
from tests.fakes.routing_checks import check_trained_rows, stored_routing
from tests.fakes.running_gateway import Gateway, echo, running_gateway, user
from tests.fakes.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration
TEMPERATURE = 0.7
"""Of ``running_gateway``."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of one shape that end no turn by themselves; the first layer is dense."""
    size = tiny_tokenizer().get_vocab_size()
    made = [
        write_tiny_model(
            tmp_path_factory.mktemp("model"), vocab_size=size, seed=seed, num_hidden_layers=3,
            mlp_only_layers=[0], tie_word_embeddings=False,
        )
        for seed in (0, 1)
    ]  # fmt: skip
    for model in made:
        never_end(model)
    return made


def never_end(model: Path) -> None:
    """Change a model so that it samples no stop token."""
    policy: Any = Qwen3MoeForCausalLM.from_pretrained(model)
    tokenizer = tiny_tokenizer()
    ends = [tokenizer.token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>")]
    with torch.no_grad():
        policy.model.embed_tokens.weight[:, 0] = 1.0
        for layer in policy.model.layers:  # dimension 0 stays the same positive number
            layer.self_attn.o_proj.weight[0] = 0.0
            experts = getattr(layer.mlp, "experts", None)
            part = layer.mlp.down_proj.weight[0] if experts is None else experts.down_proj[:, 0]
            part.zero_()
        policy.lm_head.weight[:, 0] = 0.0
        policy.lm_head.weight[[end for end in ends if end is not None], 0] = -1000.0
    policy.save_pretrained(model)


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


async def switch_at(
    engine: HttpEngine, tokens: int, model: Path, version: int, *, in_flight: bool
) -> None:
    """Switch the weights once so many tokens were generated, in flight or requests being held."""
    async with asyncio.timeout(60):
        while (await generated_tokens(engine)) < tokens:
            await asyncio.sleep(0.002)
    if in_flight:
        await engine.switch_weights(model, version)
        return
    await engine.post("/pause_generation", {"mode": "in_place"}, deadline_s=10)
    await engine.update_weights(model, version)
    await engine.post("/continue_generation", {}, deadline_s=10)


async def generated_tokens(engine: HttpEngine) -> int:
    """Return how many tokens an engine has generated."""
    info = orjson.loads(await engine.request_bytes("GET", "/server_info", deadline_s=10))
    return int(info["internal_states"][0]["generated_tokens"])


def teacher_logprobs(model: Path, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return each token's logprob under a model, float32 [T]; 0 for the first."""
    policy = Qwen3MoeForCausalLM.from_pretrained(model)
    ids = torch.from_numpy(tokens.astype(np.int64))
    with torch.no_grad():
        logprobs = (policy(ids[None]).logits[0] / TEMPERATURE).log_softmax(-1)
    chosen = logprobs[:-1].gather(1, ids[1:, None])[:, 0]
    return np.append(np.zeros(1, np.float32), chosen.numpy())


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


async def test_a_switch_in_the_middle_of_a_generation_marks_each_token_with_its_weights(
    gateway: Gateway, engine: HttpEngine, models: list[Path]
) -> None:
    """Two switches in one turn: token by token the logprobs and the routing are the version's, in
    the store, in the samples and in the staleness.
    """
    agent = await gateway.session(seed=3)
    switching = asyncio.create_task(_switch_twice(engine, models))
    answer = await agent.ask([user("fix it")], max_tokens=600)
    await switching
    await agent.ask([user("fix it"), echo(answer), user("go on")], max_tokens=8)
    first, second = gateway.turns("s1")
    assert [version for version, _ in first.weight_spans] == [0, 1, 2]
    assert (first.weight_version, second.weight_version, second.weight_spans) == (2, 2, [])
    (chain,) = build_segments([first, second])
    versions = chain.weight_versions
    assert set(versions[chain.loss_mask].tolist()) == {0, 1, 2}
    by_model = [teacher_logprobs(model, chain.tokens) for model in models]
    expected = np.where(versions == 1, by_model[1], by_model[0])
    at = chain.loss_mask
    assert np.abs(chain.logprobs - expected)[at].max() < 1e-4
    assert (np.abs(by_model[0] - by_model[1])[at] > 1e-2).mean() > 0.9, "so the others' differ"
    shape = read_routing_shape(models[0])
    assert shape is not None
    found = check_trained_rows(
        gateway, lambda tokens, version: choose_experts(models[version % 2], tokens), shape
    )
    assert found == [0, 1, 2]
    fanned = fan_out("r", [chain], 1.0, compose([]).fanout)
    assert fanned.samples[0].weight_versions is not None
    assert np.array_equal(fanned.samples[0].weight_versions, versions)


async def _switch_twice(engine: HttpEngine, models: list[Path]) -> None:
    await switch_at(engine, 30, models[1], 1, in_flight=True)
    await switch_at(engine, 90, models[0], 2, in_flight=True)


async def test_a_switch_that_keeps_the_cache_marks_tokens_and_keeps_the_rows_that_sampled_them(
    gateway: Gateway, engine: HttpEngine, models: list[Path]
) -> None:
    """``in_place``: later tokens see keys of both weights, so only the earlier ones can be told."""
    agent = await gateway.session(seed=3)
    switching = asyncio.create_task(switch_at(engine, 30, models[1], 1, in_flight=False))
    await agent.ask([user("fix it")], max_tokens=200)
    await switching
    (turn,) = gateway.turns("s1")
    (chain,) = build_segments([turn])
    before = chain.loss_mask & (chain.weight_versions == 0)
    assert 30 <= int(before.sum()) < len(turn.output_ids)
    assert turn.weight_spans[0] == [0, int(before.sum())]
    expected = teacher_logprobs(models[0], chain.tokens)
    assert np.abs(chain.logprobs - expected)[before].max() < 1e-4
    after = chain.loss_mask & ~before
    assert np.abs(chain.logprobs - expected)[after].max() > 1e-2
    shape = read_routing_shape(models[0])
    assert shape is not None
    routing = build_segment_routing(chain, stored_routing(gateway), shape)
    assert routing.valid[:-1].all()
