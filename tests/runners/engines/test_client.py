"""The HTTP client, against the embedded engine and a scripted SGLang server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from aiohttp import web

from agentrl.testing.completions import Completion, Reply
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.keys import groups
from runners.engines.client import HttpEngine
from runners.engines.connection import status_error
from runners.engines.contract import Engine, EngineError, EngineLoad, SamplingParams
from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.server import EngineServer
from runners.records.record import UNKNOWN_VERSION

Json = dict[str, Any]
HANGS = Completion(delay_s=3600)


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as server:
        yield server


@pytest.fixture
async def engine(scripted: ScriptedEngine) -> AsyncIterator[HttpEngine]:
    client = HttpEngine(scripted.url, deadline_s=5.0)
    yield client
    await client.close()


def reply(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """Return an answer with a JSON body, or with bytes as they are."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return Reply(raw, status, headers or {})


def sglang_answer(**changes: Any) -> Json:
    """Return an answer of SGLang 0.5.15, with a trimmed ``output_ids`` as in old versions."""
    meta: Json = {
        "id": "a", "finish_reason": {"type": "stop", "matched": 9}, "prompt_tokens": 3,
        "completion_tokens": 2, "cached_tokens": 1, "weight_version": "default",
        "e2e_latency": 0.25, "output_token_logprobs": [[-0.5, 4, None], [-1.5, 9, None]],
        "output_token_logprobs_length": 2,
    }  # fmt: skip
    return {"text": "x", "output_ids": [4], "meta_info": {**meta, **changes}}


async def test_the_embedded_engine_gives_the_same_with_and_without_http(
    core: EngineCore, url: str
) -> None:
    client = HttpEngine(url)
    both: tuple[Engine, Engine] = (core, client)
    params = SamplingParams(
        20, temperature=0.8, top_p=0.9, top_k=50, stop_token_ids=(5, 6), sampling_seed=3
    )
    direct, remote = [
        await engine.generate([1, 2, 3], params, rid=f"r{index}")
        for index, engine in enumerate(both)
    ]
    assert remote.output_ids.dtype == np.int32
    assert remote.logprobs.dtype == np.float32
    assert np.array_equal(remote.output_ids, direct.output_ids)
    assert np.allclose(remote.logprobs, direct.logprobs, atol=1e-5)
    assert (remote.finish_reason, remote.matched) == (direct.finish_reason, direct.matched)
    assert remote.prompt_tokens == 3
    assert remote.engine_s > 0
    await client.close()


async def test_weights_and_health_work_through_http(
    core: EngineCore, url: str, other_model_dir: Path, tmp_path: Path
) -> None:
    client = HttpEngine(url)
    await client.check_health()
    await client.update_weights(other_model_dir, 4)
    assert (await client.generate([1], SamplingParams(1), rid="a")).weight_version == 4
    with pytest.raises(EngineError, match=r"config\.json") as caught:
        await client.update_weights(tmp_path, 5)
    assert (caught.value.status, caught.value.retryable) == (400, False)
    await core.close()
    with pytest.raises(EngineError):
        await client.check_health()
    await client.close()


async def test_a_refused_request_carries_status_and_text(core: EngineCore, url: str) -> None:
    client = HttpEngine(url)
    with pytest.raises(EngineError, match="exceeds the model's maximum context length") as caught:
        await client.generate([1], SamplingParams(5000), rid="a")
    assert (caught.value.status, caught.value.retryable) == (400, False)
    await client.close()


async def test_cancelling_a_call_aborts_the_request_at_the_embedded_engine(
    core: EngineCore, url: str
) -> None:
    client = HttpEngine(url)
    call = asyncio.create_task(client.generate([1], SamplingParams(2000), rid="a"))
    while not (await core.load()).running:
        await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    while (await core.load()).running:
        await asyncio.sleep(0.001)
    await client.close()


async def test_a_unix_socket_works_too(core: EngineCore, tmp_path: Path) -> None:
    runner = web.AppRunner(EngineServer(core).application())
    await runner.setup()
    path = tmp_path / "engine.sock"
    await web.UnixSite(runner, str(path)).start()
    client = HttpEngine(f"unix:{path}")
    assert len((await client.generate([1], SamplingParams(3), rid="a")).output_ids) == 3
    await client.close()
    await runner.cleanup()


# --- against a scripted server ---------------------------------------------------------------


async def test_the_request_is_what_sglang_expects(
    scripted: ScriptedEngine, engine: HttpEngine
) -> None:
    scripted.always_reply = reply(sglang_answer())
    params = SamplingParams(7, 0.5, 0.9, -1, ("x",), (9,), 11)
    await engine.generate([1, 2, 3], params, rid="a")
    assert scripted.seen.calls == [
        (
            "/generate",
            {
                "rid": "a",
                "input_ids": [1, 2, 3],
                "return_logprob": True,
                "sampling_params": {
                    "max_new_tokens": 7,
                    "temperature": 0.5,
                    "top_p": 0.9,
                    "top_k": -1,
                    "stop": ["x"],
                    "stop_token_ids": [9],
                    "sampling_seed": 11,
                    "no_stop_trim": True,
                    "skip_special_tokens": False,
                    "spaces_between_special_tokens": False,
                },
            },
        )
    ]


async def test_ids_come_with_their_logprobs_and_default_is_version_0(
    scripted: ScriptedEngine, engine: HttpEngine
) -> None:
    scripted.always_reply = reply(sglang_answer())
    answer = await engine.generate([1, 2, 3], SamplingParams(2), rid="a")
    assert answer.output_ids.tolist() == [4, 9]
    assert answer.logprobs.tolist() == [-0.5, -1.5]
    assert (answer.finish_reason, answer.matched) == ("stop", 9)
    assert (answer.prompt_tokens, answer.cached_tokens, answer.engine_s) == (3, 1, 0.25)
    assert answer.weight_version == 0


@pytest.mark.parametrize("version", [None, "nightly", "1.5", ""])
async def test_what_a_server_does_not_report_is_unknown_or_measured(
    scripted: ScriptedEngine, engine: HttpEngine, version: str | None
) -> None:
    answer = sglang_answer(weight_version=version, cached_tokens=None)
    del answer["meta_info"]["e2e_latency"]
    scripted.always_reply = Reply(orjson.dumps(answer), delay_s=0.05)
    generation = await engine.generate([1, 2, 3], SamplingParams(2), rid="a")
    assert generation.weight_version == UNKNOWN_VERSION
    assert generation.cached_tokens == 0
    assert generation.engine_s >= 0.05


@pytest.mark.parametrize(
    ("status", "body", "text", "retryable"),
    [
        (400, {"error": {"message": "bad"}}, "bad", False),
        (422, {"detail": [{"loc": ["body"]}]}, "loc", False),
        (404, b"nothing here", "nothing here", False),
        (500, {"detail": "broken"}, "broken", True),
        (503, {"error": {"message": "busy"}}, "busy", True),
        (502, b"", "502", True),
    ],
)
async def test_http_errors_are_classified(
    scripted: ScriptedEngine, engine: HttpEngine, status: int, body: Any, text: str, retryable: bool
) -> None:
    scripted.always_reply = reply(body, status)
    with pytest.raises(EngineError, match=text) as caught:
        await engine.generate([1], SamplingParams(1), rid="a")
    assert (caught.value.status, caught.value.retryable) == (status, retryable)
    assert caught.value.pushed_back == (status == 503)


def in_seconds(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        ("7", 7, 7),
        (3600, 3500, 3600),
        (-60, 0, 0),
        ("soon", 0, 0),
        ("-3", 0, 0),
        ("", 0, 0),
    ],
    ids=["seconds", "date", "past", "word", "negative", "empty"],
)
async def test_retry_after_is_read_in_seconds_and_as_a_date(
    scripted: ScriptedEngine, engine: HttpEngine, asked: str | float, least: float, most: float
) -> None:
    header = asked if isinstance(asked, str) else in_seconds(asked)
    scripted.always_reply = reply({}, 429, {"Retry-After": header})
    with pytest.raises(EngineError) as caught:
        await engine.generate([1], SamplingParams(1), rid="a")
    assert least <= caught.value.retry_after_s <= most
    assert (caught.value.pushed_back, caught.value.retryable) == (True, True)


@pytest.mark.parametrize(("status", "aborts"), [(500, 1), (504, 1), (400, 0), (429, 0), (503, 0)])
async def test_a_request_that_may_still_run_is_aborted(
    scripted: ScriptedEngine, engine: HttpEngine, status: int, aborts: int
) -> None:
    scripted.always_reply = reply({}, status)
    with pytest.raises(EngineError):
        await engine.generate([1], SamplingParams(1), rid="a")
    await engine.close()
    assert scripted.seen.calls[1:] == [("/abort_request", {"rid": "a"})] * aborts


async def test_a_kept_connection_that_the_server_closed_is_dropped() -> None:
    body = orjson.dumps(sglang_answer())
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body)
        await reader.readuntil(b"POST /generate")  # the next request meets a closing server
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = HttpEngine(f"http://127.0.0.1:{port}")
        await client.generate([1], SamplingParams(1), rid="a")
        with pytest.raises(EngineError, match="unreachable") as caught:
            await client.generate([1], SamplingParams(1), rid="b")
        assert (caught.value.dropped, caught.value.retryable) == (True, True)
        await client.close()


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"text": "no meta"}',
        b"null",
        sglang_answer(output_token_logprobs=None),
    ],
)
async def test_an_unreadable_answer_is_an_engine_error(
    scripted: ScriptedEngine, engine: HttpEngine, body: Any
) -> None:
    scripted.always_reply = reply(body)
    with pytest.raises(EngineError, match="unreadable answer") as caught:
        await engine.generate([1], SamplingParams(1), rid="a")
    assert not caught.value.retryable


def test_a_server_without_the_path_is_perhaps_of_another_kind() -> None:
    error = status_error("http://h:1", "/generate", 404, b'{"detail": "Not Found"}', {})
    assert "HTTP 404: Not Found. If another kind of server is at this address, choose it: " in str(
        error
    )
    for kind in ("sglang", "vllm", "openai", "anthropic"):
        assert f"engine={kind}" in str(error)
        assert kind in groups()["engine"]


async def test_a_missing_engine_is_unreachable_and_retryable() -> None:
    client = HttpEngine("http://127.0.0.1:1")
    with pytest.raises(EngineError, match="unreachable"):
        await client.check_health()
    with pytest.raises(EngineError, match="unreachable") as caught:
        await client.generate([1], SamplingParams(1), rid="a")
    assert (caught.value.status, caught.value.retryable) == (None, True)
    assert not caught.value.dropped
    await client.close()


async def test_a_late_answer_is_given_up_and_aborted(scripted: ScriptedEngine) -> None:
    scripted.always = HANGS
    client = HttpEngine(scripted.url, deadline_s=0.1)
    with pytest.raises(EngineError, match=r"no answer within 0\.1 s") as caught:
        await client.generate([1], SamplingParams(1), rid="late")
    assert (caught.value.status, caught.value.retryable) == (None, True)
    await client.close()
    assert scripted.seen.calls[-1] == ("/abort_request", {"rid": "late"})


async def test_cancelling_closes_the_connection_and_posts_an_abort(
    scripted: ScriptedEngine, engine: HttpEngine
) -> None:
    scripted.always, scripted.deaf = HANGS, True
    call = asyncio.create_task(engine.generate([1], SamplingParams(1), rid="gone"))
    await scripted.arrived.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await engine.close()
    assert scripted.seen.calls[-1] == ("/abort_request", {"rid": "gone"})
    while scripted.running:  # it ignores aborts: the closed connection ended it
        await asyncio.sleep(0.001)


async def test_a_failed_update_is_an_engine_error(
    scripted: ScriptedEngine, engine: HttpEngine
) -> None:
    scripted.always_reply = reply({"success": False, "message": "no such directory"})
    with pytest.raises(EngineError, match="no such directory"):
        await engine.update_weights(Path("/x"), 3)
    body = {"model_path": "/x", "weight_version": "3"}
    assert scripted.seen.calls == [("/update_weights_from_disk", body)]


async def test_a_retryable_update_is_retried(
    scripted: ScriptedEngine,
    engine: HttpEngine,
) -> None:
    scripted.replies.extend([reply({}, 503), reply({"success": True})])
    await engine.update_weights(Path("/x"), 3)
    assert len(scripted.seen.calls) == 2


async def test_an_update_without_an_answer_is_not_retried(scripted: ScriptedEngine) -> None:
    scripted.always_reply = Reply(delay_s=3600)
    client = HttpEngine(scripted.url, update_deadline_s=0.1)
    with pytest.raises(EngineError, match="no answer"):
        await client.update_weights(Path("/x"), 3)
    assert len(scripted.seen.calls) == 1
    await client.close()


async def test_loads_are_summed_over_the_ranks(
    scripted: ScriptedEngine, engine: HttpEngine
) -> None:
    rows = [
        {"dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 0},
        {"dp_rank": 1, "num_running_reqs": 1, "num_waiting_reqs": 4},
    ]
    scripted.always_reply = reply({"timestamp": 1.0, "version": "x", "loads": rows})
    assert await engine.loads() == EngineLoad(running=3, waiting=4)
    assert not EngineLoad(0, 1).idle
    assert EngineLoad(0, 0).idle


@pytest.mark.parametrize("body", [b"<html>", [], {"loads": [{"dp_rank": 0}]}, {"loads": None}])
async def test_loads_that_cannot_be_read_are_an_engine_error(
    scripted: ScriptedEngine, engine: HttpEngine, body: Any
) -> None:
    scripted.always_reply = reply(body)
    with pytest.raises(EngineError, match="unreadable answer"):
        await engine.loads()


async def test_the_embedded_engine_reports_its_load(core: EngineCore, url: str) -> None:
    client = HttpEngine(url)
    assert (await client.loads()).idle
    call = asyncio.create_task(client.generate([1], SamplingParams(1500), rid="a"))
    while (load := await client.loads()).idle:
        await asyncio.sleep(0.001)
    assert load == EngineLoad(running=1, waiting=0)
    await client.abort_all()
    assert (await call).finish_reason == "abort"
    assert (await client.loads()).idle
    await client.close()


async def test_proxies_of_the_environment_are_ignored(
    core: EngineCore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    client = HttpEngine(url)
    assert len((await client.generate([1], SamplingParams(3), rid="a")).output_ids) == 3
    await client.close()
