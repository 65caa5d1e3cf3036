"""LoRA adapters at an SGLang server: loaded, replaced, named in requests, with their version.

The stand-in does what SGLang 0.5.15.post1 does (``srt/managers/tokenizer_control_mixin.py``,
``srt/lora/lora_manager.py``): no second adapters of a name, status 400 with ``error_message``, no
change of ``weight_version``, and a silent second loading of a name that was unloaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest

from agentrl.testing.completions import Completion, Reply
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.engines.adapters import LOAD_PATH, UNLOAD_PATH, VERSION_PATH
from runners.engines.client import UPDATE_PATH, HttpEngine
from runners.engines.contract import ADAPTER_NAME, EngineError, SamplingParams
from runners.engines.sglang.workers import connect_engine

PARAMS = SamplingParams(max_new_tokens=4)


@pytest.fixture
async def servers() -> AsyncIterator[list[ScriptedEngine]]:
    async with AsyncExitStack() as exits:
        running = [await exits.enter_async_context(ScriptedEngine()) for _ in range(2)]
        for server in running:
            server.adapters, server.always = {}, Completion("ok<|im_end|>")
            server.weight_version = "0"
        yield running


@pytest.fixture
async def engine(servers: list[ScriptedEngine]) -> AsyncIterator[HttpEngine]:
    client = HttpEngine(servers[0].url, deadline_s=5.0, adapter=ADAPTER_NAME)
    yield client
    await client.close()


async def test_generations_name_the_adapters_and_report_their_version(
    servers: list[ScriptedEngine], engine: HttpEngine, tmp_path: Path
) -> None:
    for version in (1, 2):
        await engine.update_weights(tmp_path / f"step-{version}", version)
        found = await engine.generate([1, 2], PARAMS, rid=f"r{version}")
        assert found.weight_version == version
        assert servers[0].adapters == {ADAPTER_NAME: f"{tmp_path}/step-{version}/adapter"}
        assert servers[0].seen.requests[-1]["lora_path"] == ADAPTER_NAME
    paths = [path for path, _ in servers[0].seen.calls if path != "/generate"]
    assert paths == [UNLOAD_PATH, LOAD_PATH, VERSION_PATH] * 2
    assert UPDATE_PATH not in paths


async def test_an_update_that_failed_half_way_is_repeated_whole(
    servers: list[ScriptedEngine], engine: HttpEngine, tmp_path: Path
) -> None:
    """The reply to the loading is lost: the second attempt finds the name taken, and frees it."""
    await engine.update_weights(tmp_path / "one", 1)
    unloaded = Reply(orjson.dumps({"success": True}))
    servers[0].replies += [unloaded, Reply(b"busy", 503)]
    await engine.update_weights(tmp_path / "two", 2)
    assert servers[0].adapters == {ADAPTER_NAME: f"{tmp_path}/two/adapter"}
    assert servers[0].weight_version == "2"


async def test_a_server_without_adapters_refuses_and_the_reason_is_told(
    servers: list[ScriptedEngine], engine: HttpEngine, tmp_path: Path
) -> None:
    servers[0].adapters = None
    with pytest.raises(EngineError, match="set `--enable-lora`") as caught:
        await engine.update_weights(tmp_path, 1)
    assert (caught.value.status, caught.value.retryable) == (400, False)
    with pytest.raises(EngineError, match="LoRA is not enabled"):
        await engine.generate([1], PARAMS, rid="a")


async def test_a_server_that_was_restarted_refuses_instead_of_sampling_from_the_base(
    servers: list[ScriptedEngine], engine: HttpEngine, tmp_path: Path
) -> None:
    await engine.update_weights(tmp_path, 1)
    servers[0].adapters = {}
    with pytest.raises(EngineError, match="never been loaded"):
        await engine.generate([1], PARAMS, rid="a")


async def test_every_worker_gets_the_adapters(
    servers: list[ScriptedEngine], tmp_path: Path
) -> None:
    urls = [server.url for server in servers]
    engine = connect_engine(urls[0], urls, deadline_s=5.0, adapter=ADAPTER_NAME)
    await engine.update_weights(tmp_path, 3)
    for session in range(8):
        assert (await engine.generate([1], PARAMS, rid=f"s{session}:a")).weight_version == 3
    await engine.close()
    for server in servers:
        assert server.adapters == {ADAPTER_NAME: f"{tmp_path}/adapter"}
        assert all(body["lora_path"] == ADAPTER_NAME for body in server.seen.requests)
        assert server.seen.requests
