"""A gateway on loopback, with a scripted engine behind it and a real store under it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.testing.scripted_engine import ScriptedEngine
from runners.records.tokenizer import (
    Renderer,
    Tokenizer,
    load_renderer,
    load_tokenizer,
    write_tiny_tokenizer,
)
from tests.fakes.running_gateway import Gateway, running_gateway


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the tiny tokenizer."""
    return write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def parts(tokenizer_dir: Path) -> tuple[Renderer, Tokenizer]:
    """Return a renderer and its tokenizer."""
    tokenizer = load_tokenizer(tokenizer_dir)
    return load_renderer(tokenizer, "qwen3"), tokenizer


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """Serve a scripted engine."""
    async with ScriptedEngine() as engine:
        yield engine


@pytest.fixture
async def gateway(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> AsyncIterator[Gateway]:
    """Serve a gateway in this loop."""
    async with running_gateway(engine.url, tokenizer_dir, tmp_path / "run") as gateway:
        yield gateway


@pytest.fixture
async def impatient_gateway(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> AsyncIterator[Gateway]:
    """Serve a gateway whose turns have half a second."""
    run_dir = tmp_path / "run"
    async with running_gateway(engine.url, tokenizer_dir, run_dir, turn_s=0.5) as gateway:
        yield gateway
