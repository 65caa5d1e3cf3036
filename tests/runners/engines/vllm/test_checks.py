"""Checks of a vLLM server: each capability is missing once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from runners.engines.vllm.checks import check_vllm
from tests.fakes.vllm_server import MODEL, VllmServer

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
async def server() -> AsyncIterator[VllmServer]:
    async with VllmServer() as server:
        yield server


async def run_checks(
    url: str, *, model: str | None = None, context: int = 32768
) -> dict[str, tuple[bool, str]]:
    results = await check_vllm(url, model=model, context_tokens=context)
    return {result.name: (result.ok, result.detail) for result in results}


async def test_a_server_with_everything_passes(server: VllmServer) -> None:
    found = await run_checks(server.url)
    assert all(ok for ok, _ in found.values()), found
    assert found["model"][1] == MODEL
    assert found["context length"][1] == "40,960 tokens"


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("raw_logprobs", "raw: before temperature"),
        ("processed_logprobs", "processed: after temperature"),
    ],
)
async def test_the_logprobs_mode_is_found_by_trying(
    server: VllmServer, mode: str, says: str
) -> None:
    server.logprobs_mode = mode
    ok, detail = (await run_checks(server.url))["logprobs mode"]
    assert ok
    assert detail.startswith(says)
    assert server.requests[-1]["top_k"] == 1


async def test_logits_in_place_of_logprobs_are_refused(server: VllmServer) -> None:
    server.logprobs_mode = "raw_logits"
    ok, detail = (await run_checks(server.url))["logprobs mode"]
    assert not ok
    assert "--logprobs-mode processed_logprobs" in detail


async def test_what_is_missing_is_named_with_its_fix(server: VllmServer) -> None:
    server.returns_token_ids = False
    server.max_model_len = 1000
    found = await run_checks(server.url, model="other", context=2000)
    assert found["model"] == (False, f"engine.model=other is not served; the server has: {MODEL}")
    found = await run_checks(server.url, context=2000)
    assert "needs vLLM 0.10.2" in found["token ids and logprobs"][1]
    assert "--max-model-len 2000" in found["context length"][1]


async def test_a_server_that_is_down_gives_one_result() -> None:
    found = await run_checks(NOBODY)
    assert list(found) == ["answers"]
    assert "Start the server that engine.url names" in found["answers"][1]
