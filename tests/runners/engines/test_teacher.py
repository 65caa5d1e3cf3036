"""A teacher behind a real engine: exact scores, retries, and answers that are of no use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web
from transformers import Qwen3MoeForCausalLM

from conf.sections.section import ENGINE_KEY, TEACHER_KEY
from runners.campaigns.teaching import Teacher
from runners.engines.contract import EngineError

IDS = np.random.default_rng(0).integers(0, 90, 30).astype(np.int32)


@asynccontextmanager
async def connect(url: str, deadline_s: float = 30.0) -> AsyncIterator[Teacher]:
    teacher = Teacher(url, deadline_s=deadline_s)
    try:
        yield teacher
    finally:
        await teacher.close()


async def test_a_teacher_scores_exactly_the_tokens_that_it_is_given(
    url: str, reference: Qwen3MoeForCausalLM
) -> None:
    async with connect(url) as teacher:
        found = await teacher.score(IDS, 12)
    tokens = torch.from_numpy(IDS.astype(np.int64))
    with torch.no_grad():
        logits = reference(tokens[None]).logits[0, :-1]
    wanted = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0].numpy()
    assert found.dtype == np.float32
    assert np.allclose(found, wanted[11:], atol=1e-5)


async def test_more_sequences_than_a_teacher_takes_at_once_are_scored(url: str) -> None:
    async with connect(url) as teacher:
        one = await teacher.score(IDS, 1)
        many = await asyncio.gather(*(teacher.score(IDS, 1) for _ in range(40)))
    assert all(np.array_equal(one, each) for each in many)


async def test_a_sequence_beyond_the_teachers_context_is_refused_at_once(url: str) -> None:
    async with connect(url) as teacher:
        with pytest.raises(EngineError, match="longer than the model's context"):
            await teacher.score(np.ones(4000, np.int32), 1)


Answer = Callable[[int], dict[str, Any] | int]


@asynccontextmanager
async def serve(answer: Answer, headers: list[dict[str, str]] | None = None) -> AsyncIterator[str]:
    """Serve ``/generate`` whose n-th answer is a body, or a status; note the requests' headers."""
    calls = 0

    async def generate(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        if headers is not None:
            headers.append(dict(request.headers))
        found = answer(calls)
        if isinstance(found, int):
            return web.json_response({"error": {"message": "busy"}}, status=found)
        return web.json_response(found)

    app = web.Application()
    app.router.add_post("/generate", generate)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def scores(*values: float | None, reason: str = "length") -> dict[str, Any]:
    items = [[value, 1, None] for value in (None, *values)]
    return {"meta_info": {"finish_reason": {"type": reason}, "input_token_logprobs": items}}


async def test_an_overloaded_teacher_is_asked_again() -> None:
    async with (
        serve(lambda call: 503 if call < 3 else scores(-1.0, -2.0)) as url,
        connect(url) as teacher,
    ):
        found = await teacher.score(IDS[:3], 1)
    assert found.tolist() == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (scores(-1.0), "1 logprobs for 2 tokens"),
        (scores(), "0 logprobs for 2 tokens"),
        (scores(-1.0, None), "/generate"),
        ({"text": ""}, "/generate"),
        (500, "busy"),
        (scores(-1.0, -2.0, reason="abort"), "aborted"),
    ],
)
async def test_an_answer_of_no_use_is_an_error(answer: dict[str, Any] | int, fault: str) -> None:
    async with serve(lambda _: answer) as url, connect(url, deadline_s=0.3) as teacher:
        with pytest.raises(EngineError, match=fault):
            await teacher.score(IDS[:3], 1)


async def test_a_teacher_gets_its_own_key_and_never_the_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, str]] = []
    monkeypatch.setenv(ENGINE_KEY, "engine-7")
    for key in (None, "teacher-7"):
        if key is not None:
            monkeypatch.setenv(TEACHER_KEY, key)
        async with serve(lambda _: scores(-1.0, -2.0), seen) as url, connect(url) as teacher:
            await teacher.score(IDS[:3], 1)
    assert [headers.get("Authorization") for headers in seen] == [None, "Bearer teacher-7"]
    async with serve(lambda _: 401) as url, connect(url) as teacher:
        with pytest.raises(EngineError, match=f"Set {TEACHER_KEY}"):
            await teacher.score(IDS[:3], 1)
