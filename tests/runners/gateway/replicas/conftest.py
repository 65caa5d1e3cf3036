"""Two gateway processes' worth of sessions, and their HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.client import GatewayAdmin
from runners.gateway.settings import GatewaySettings
from runners.records.store.run_store import RunStore
from tests.fakes.replicated_gateway import inline_replicas
from tests.fakes.running_gateway import settings_for
from tests.runners.gateway.replicas.agents import CALL


@pytest.fixture
def settings(engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path) -> GatewaySettings:
    run_dir = tmp_path / "run"
    RunStore.create(run_dir, {}).close()
    engine.always = Completion(CALL)
    return settings_for(engine.url, tokenizer_dir, run_dir, keep_rollouts=True)


@pytest.fixture
async def admin(settings: GatewaySettings) -> AsyncIterator[GatewayAdmin]:
    """Serve two processes' gateways."""
    async with inline_replicas(settings) as admin:
        yield admin


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as http:
        yield http
