"""The probe of an engine's routing: what is wrong on the way, and what to change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from conf.errors import ExitCode
from runners.engines.capabilities import RoutingProbeError, probe_routing
from runners.engines.client import HttpEngine
from runners.engines.contract import EngineError
from runners.trajectory.routing import RoutingShape
from tests.fakes.scripted_engine import Completion, ScriptedEngine

SHAPE = RoutingShape(layers=3, top_k=2, experts=64, routed=(1, 2))


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedEngine]:
    """Serve an engine with routing."""
    async with ScriptedEngine() as engine:
        engine.shape = SHAPE
        yield engine


@pytest.fixture
async def engine(scripted: ScriptedEngine) -> AsyncIterator[HttpEngine]:
    """Connect to it."""
    client = HttpEngine(scripted.url)
    yield client
    await client.close()


async def test_an_engine_that_returns_what_is_asked_for_passes(
    engine: HttpEngine, scripted: ScriptedEngine
) -> None:
    scripted.say("ab")
    await probe_routing(engine, SHAPE, "engine")
    (asked,) = scripted.seen.requests
    assert asked["routed_experts_start_len"] == 1


@pytest.mark.parametrize(
    ("sent", "shape", "mend"),
    [
        ("none", SHAPE, "--enable-return-routed-experts. An old router"),
        ("whole", SHAPE, "ignores routed_experts_start_len"),
        ("short", SHAPE, "another model than model.path describes"),
        ("sent", replace(SHAPE, layers=4), "another model than model.path describes"),
        ("sent", replace(SHAPE, experts=2), "another model than model.path describes"),
        ("sent", replace(SHAPE, routed=(0, 1, 2)), "layer 0 routes a token twice to one expert"),
    ],
)
async def test_what_comes_back_wrong_is_refused_with_its_mend(
    sent: str, shape: RoutingShape, mend: str, engine: HttpEngine, scripted: ScriptedEngine
) -> None:
    scripted.say(Completion("ab", routing=sent))
    with pytest.raises(RoutingProbeError, match="routing_replay=off") as caught:
        await probe_routing(engine, shape, "engine.url=http://there")
    assert mend in str(caught.value)
    assert "engine.url=http://there" in str(caught.value)
    assert caught.value.exit_code is ExitCode.PREFLIGHT


async def test_an_engine_that_does_not_answer_is_gone(engine: HttpEngine) -> None:
    with pytest.raises(EngineError):
        await probe_routing(engine, SHAPE, "engine")
