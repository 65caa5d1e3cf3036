"""Logprobs of a prompt: those of transformers, whatever is batched, cached or cut into parts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeForCausalLM

from runners.engines.contract import EngineError
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.request import RequestSampling
from runners.engines.embedded.scheduler import PREFILL_TOKENS
from runners.engines.embedded.wire import parse_generate
from runners.records.record import IdArray, LogprobArray

NOTHING = RequestSampling(max_new_tokens=0, temperature=0.7)


def make_ids(length: int, seed: int = 0) -> IdArray:
    return np.random.default_rng(seed).integers(0, 90, length).astype(np.int32)


def expected(reference: Qwen3MoeForCausalLM, ids: IdArray) -> LogprobArray:
    """The logprob of each token but the first, by transformers, at temperature 1."""
    tokens = torch.from_numpy(ids.astype(np.int64))
    with torch.no_grad():
        logits = reference(tokens[None]).logits[0, :-1]
    found: LogprobArray = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0].numpy()
    return found


async def score(core: EngineCore, ids: IdArray, start: int, rid: str = "a") -> LogprobArray:
    done = await core.run(rid, ids, NOTHING, None, start)
    assert done.input_logprobs is not None
    assert (len(done.output_ids), done.input_logprobs[0]) == (0, 0.0)
    return done.input_logprobs


@pytest.mark.parametrize("start", [0, 1, 17, 38])
async def test_they_are_those_of_transformers(
    core: EngineCore, reference: Qwen3MoeForCausalLM, start: int
) -> None:
    ids = make_ids(40)
    found = await score(core, ids, start)
    assert len(found) == 40 - start
    assert np.allclose(found[1:], expected(reference, ids)[start:], atol=1e-5)


async def test_a_long_prompt_that_is_computed_in_parts_has_them_all(
    core: EngineCore, reference: Qwen3MoeForCausalLM
) -> None:
    ids = make_ids(PREFILL_TOKENS + 300)
    found = await score(core, ids, 5)
    assert np.allclose(found[1:], expected(reference, ids)[5:], atol=1e-4)


async def test_what_is_cached_batched_and_decoded_beside_it_changes_no_bit(
    core: EngineCore,
) -> None:
    ids = make_ids(60)
    alone = await score(core, ids, 20)
    again = await score(core, ids, 20)  # everything is in the prefix cache now
    others = [make_ids(60, seed) for seed in (1, 2, 3)]
    running = core.run("d", make_ids(30, 9), RequestSampling(max_new_tokens=40))
    decoding = asyncio.create_task(running)
    together = await asyncio.gather(
        *(score(core, other, 0, f"s{n}") for n, other in enumerate(others)),
        score(core, ids, 20, "same"),
    )
    await decoding
    assert np.array_equal(alone, again)
    assert np.array_equal(alone, together[3])
    first = (await score(core, others[0], 0))[1:]
    assert np.array_equal(first, together[0][1:])


async def test_a_generations_logprobs_are_those_of_its_tokens_as_a_prompt(core: EngineCore) -> None:
    prompt = make_ids(12)
    done = await core.run("g", prompt, RequestSampling(max_new_tokens=10, seed=3))
    whole = np.concatenate([prompt, done.output_ids])
    found = await score(core, whole, len(prompt) - 1)
    assert np.array_equal(found[1:], done.logprobs)


async def test_an_aborted_or_a_plain_request_has_none(core: EngineCore) -> None:
    done = await core.run("plain", make_ids(9), NOTHING)
    assert done.input_logprobs is None
    await core.pause("in_place")
    waiting = asyncio.create_task(core.run("w", make_ids(9), NOTHING, None, 0))
    await asyncio.sleep(0)
    await core.abort(lambda rid: rid == "w")
    assert (await waiting).input_logprobs is None


async def test_a_prompt_that_was_aborted_in_the_middle_has_none(model_dir: Path) -> None:
    core = EngineCore(model_dir, max_context_tokens=4096)
    running = asyncio.create_task(core.run("a", make_ids(4000), NOTHING, None, 0))
    while not core.steps:
        await asyncio.sleep(0.001)
    await core.abort(lambda rid: True)
    done = await running
    core.shut_down()
    assert done.finish_reason["type"] == "abort"
    assert done.input_logprobs is None


def test_a_start_beyond_the_prompt_is_refused() -> None:
    body = b'{"input_ids": [1, 2], "return_logprob": true, "logprob_start_len": 2}'
    with pytest.raises(EngineError, match="logprob_start_len: 2 is beyond the prompt of 2"):
        parse_generate(body, ())
    without = parse_generate(b'{"input_ids": [1, 2], "logprob_start_len": 1}', ())
    assert without.logprob_start is None
