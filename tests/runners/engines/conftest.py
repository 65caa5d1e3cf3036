"""One tiny model and its transformers twin for all tests of engines; engines on top of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch
from aiohttp import web
from transformers import Qwen3MoeForCausalLM

from runners.engines.embedded.core import EngineCore
from runners.engines.embedded.server import EngineServer
from runners.records.tokenizer import write_tiny_tokenizer
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def other_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of the same shape with other weights."""
    return write_tiny_model(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> Qwen3MoeForCausalLM:
    model = Qwen3MoeForCausalLM.from_pretrained(model_dir)
    assert isinstance(model, Qwen3MoeForCausalLM)
    return model


@pytest.fixture
def core(model_dir: Path, tokenizer_dir: Path) -> Iterator[EngineCore]:
    engine = EngineCore(
        model_dir, max_running_requests=16, cache_tokens=20_000, tokenizer=tokenizer_dir
    )
    yield engine
    engine.shut_down()


@pytest.fixture
async def url(core: EngineCore) -> AsyncIterator[str]:
    """Serve ``core`` over HTTP and give its address."""
    runner = web.AppRunner(
        EngineServer(core).application(), handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()
