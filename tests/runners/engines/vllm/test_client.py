"""The client of vLLM, against a fake server with vLLM's wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.sections.section import ENGINE_KEY
from runners.engines.contract import EngineError, SamplingParams
from runners.engines.vllm.client import VllmEngine
from runners.records.record import UNKNOWN_VERSION
from tests.fakes.vllm_server import MODEL, VllmAnswer, VllmServer


@pytest.fixture
async def server() -> AsyncIterator[VllmServer]:
    async with VllmServer() as server:
        yield server


@pytest.fixture
async def engine(server: VllmServer) -> AsyncIterator[VllmEngine]:
    client = VllmEngine(server.url, deadline_s=5.0)
    yield client
    await client.close()


async def test_a_request_says_everything_that_decides_the_tokens(
    server: VllmServer, engine: VllmEngine
) -> None:
    params = SamplingParams(
        20, temperature=0.8, top_p=0.9, top_k=50, stop=("END",), stop_token_ids=(5, 6),
        sampling_seed=3,
    )  # fmt: skip
    await engine.generate([1, 2, 3], params, rid="s:main:1")
    assert server.requests == [
        {
            "model": MODEL, "prompt": [1, 2, 3], "request_id": "s:main:1", "max_tokens": 20,
            "temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 3, "stop": ["END"],
            "stop_token_ids": [5, 6], "logprobs": 0, "return_token_ids": True,
            "include_stop_str_in_output": True, "skip_special_tokens": False,
            "spaces_between_special_tokens": False, "min_p": 0.0, "repetition_penalty": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0,
        }
    ]  # fmt: skip


async def test_ids_come_with_their_logprobs(server: VllmServer, engine: VllmEngine) -> None:
    server.prompt_details = True
    server.say(VllmAnswer("a b<|im_end|>", delay_s=0.05))
    found = await engine.generate([1, 2, 3, 4], SamplingParams(20), rid="a")
    ids = server.tokenizer.encode("a b<|im_end|>", add_special_tokens=False).ids
    assert found.output_ids.tolist() == ids
    assert found.output_ids.dtype == np.int32
    assert found.logprobs.dtype == np.float32
    expected = [-((7 * token + place) % 64 + 1) / 64 for place, token in enumerate(ids)]
    assert found.logprobs.tolist() == expected
    assert (found.finish_reason, found.matched) == ("stop", None)
    assert (found.prompt_tokens, found.cached_tokens) == (4, 2)
    assert found.weight_version == UNKNOWN_VERSION
    assert found.engine_s >= 0.05


async def test_lengths_stop_strings_and_cache_hits_may_be_there_or_not(
    server: VllmServer, engine: VllmEngine
) -> None:
    server.say("a b c<|im_end|>", VllmAnswer(stop_reason="END"))
    cut = await engine.generate([1], SamplingParams(2), rid="a")
    assert (cut.finish_reason, len(cut.output_ids), cut.cached_tokens) == ("length", 2, 0)
    stopped = await engine.generate([1], SamplingParams(9), rid="b")
    assert stopped.matched == "END"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt_token_ids": [1, 2]}, "the server saw 2 others"),
        ({"prompt_token_ids": [3, 2, 1]}, "something in between changes prompts"),
        ({"token_ids": None}, "it needs vLLM 0.10.2"),
        ({"prompt_token_ids": None}, "it needs vLLM 0.10.2"),
        ({"token_ids": [1, 2, 3, 4, 5, 6]}, "6 sampled ids come with"),
        ({"logprobs": {"token_logprobs": [None] * 2}, "token_ids": [1, 2]}, "has no logprob"),
        ({"logprobs": None}, "unreadable answer"),
        ({"finish_reason": "error"}, "unknown finish_reason 'error'"),
    ],
)
async def test_an_answer_that_is_not_exact_is_an_error_with_the_reason(
    server: VllmServer, engine: VllmEngine, changes: dict[str, Any], reason: str
) -> None:
    server.say(VllmAnswer("ok<|im_end|>", changes=changes))
    with pytest.raises(EngineError, match=reason) as caught:
        await engine.generate([1, 2, 3], SamplingParams(5), rid="a")
    assert not caught.value.retryable


async def test_a_server_that_returns_no_ids_is_named_too_old(
    server: VllmServer, engine: VllmEngine
) -> None:
    server.returns_token_ids = False
    with pytest.raises(EngineError, match=r"needs vLLM 0\.10\.2"):
        await engine.generate([1], SamplingParams(1), rid="a")


async def test_the_name_of_the_model_is_read_once(server: VllmServer, engine: VllmEngine) -> None:
    server.models = ["base", "adapter"]
    await asyncio.gather(*(engine.generate([1], SamplingParams(5), rid=f"r{n}") for n in range(5)))
    assert {request["model"] for request in server.requests} == {"base"}
    assert server.paths.count("/v1/models") == 1
    named = VllmEngine(server.url, model="adapter")
    await named.generate([1], SamplingParams(5), rid="a")
    assert server.requests[-1]["model"] == "adapter"
    assert server.paths.count("/v1/models") == 1
    await named.close()


async def test_a_server_without_models_is_an_error(server: VllmServer, engine: VllmEngine) -> None:
    server.models = []
    with pytest.raises(EngineError, match="serves no model"):
        await engine.generate([1], SamplingParams(1), rid="a")


async def test_a_generation_that_is_given_up_ends_at_the_server(
    server: VllmServer, engine: VllmEngine
) -> None:
    server.say(VllmAnswer(delay_s=3600))
    call = asyncio.create_task(engine.generate([1], SamplingParams(5), rid="gone"))
    await server.arrived.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(5):
        while server.aborted != ["gone"]:
            await asyncio.sleep(0.01)


async def test_a_late_generation_is_retryable_and_ends_at_the_server(server: VllmServer) -> None:
    server.say(VllmAnswer(delay_s=3600))
    engine = VllmEngine(server.url, deadline_s=0.1)
    with pytest.raises(EngineError, match=r"no answer within 0\.1 s") as caught:
        await engine.generate([1], SamplingParams(5), rid="late")
    assert caught.value.retryable
    async with asyncio.timeout(5):
        while server.aborted != ["late"]:
            await asyncio.sleep(0.01)
    await engine.close()


async def test_a_url_with_v1_is_the_same_server(server: VllmServer) -> None:
    engine = VllmEngine(f"{server.url}/v1")
    await engine.generate([1], SamplingParams(5), rid="a")
    await engine.check_health()
    assert set(server.paths) == {"/v1/models", "/v1/completions", "/health"}
    await engine.close()


async def test_the_key_comes_from_the_environment_and_is_asked_for_by_name(
    server: VllmServer, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.api_key = "secret-7"
    monkeypatch.setenv(ENGINE_KEY, "wrong-9")
    with pytest.raises(EngineError, match=f"Set {ENGINE_KEY}") as caught:
        await engine.generate([1], SamplingParams(5), rid="a")
    assert "wrong-9" not in str(caught.value)
    monkeypatch.setenv(ENGINE_KEY, "secret-7")
    keyed = VllmEngine(server.url)
    await keyed.generate([1], SamplingParams(5), rid="a")
    await keyed.close()


async def test_overload_says_how_long_to_wait(server: VllmServer, engine: VllmEngine) -> None:
    server.say(VllmAnswer(status=429, headers={"Retry-After": "7"}))
    with pytest.raises(EngineError, match="scripted fault") as caught:
        await engine.generate([1], SamplingParams(5), rid="a")
    assert (caught.value.retryable, caught.value.pushed_back) == (True, True)
    assert caught.value.retry_after_s == 7


async def test_training_calls_are_refused(engine: VllmEngine) -> None:
    for call in (engine.update_weights(Path("w"), 1), engine.loads(), engine.abort_all()):
        with pytest.raises(EngineError, match="cannot be trained with"):
            await call
