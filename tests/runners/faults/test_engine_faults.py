"""What only a model call can suffer, each with the effect that the real trouble has."""

from __future__ import annotations

from typing import Literal

import aiohttp
import pytest

from conf.fault_table import FaultKind
from conf.sections.faults import FaultRule, PlannedFaultsConfig
from runners.engines.contract import EngineError, SamplingParams
from runners.faults.process import make_gateway_hooks
from tests.fakes.running_gateway import running_gateway
from tests.fakes.scripted_engine import Completion, ScriptedEngine
from tests.runners.faults.boundaries import ROLLOUT, SESSION, Places, plan_of

EngineCall = Literal["turn", "subagent", "compaction"]
CALLS: dict[EngineCall, str] = {
    "turn": "main",
    "subagent": "subagent",
    "compaction": "compaction",
}
PARAMS = SamplingParams(max_new_tokens=50)


@pytest.mark.parametrize("where", CALLS)
async def test_a_boundary_of_the_engine_is_crossed_by_its_own_turns_only(
    places: Places, where: EngineCall
) -> None:
    for branch in ("main", "subagent", "compaction", "side"):
        async with places.engine(plan_of(where, "error")) as (engine, _):
            call = engine.generate([1], PARAMS, rid=f"{SESSION}:{branch}:0-001")
            if where in ("turn", branch):
                with pytest.raises(EngineError):
                    await call
            else:
                await call


@pytest.mark.parametrize("where", CALLS)
@pytest.mark.parametrize(("status", "pushed_back"), [(429, True), (503, True), (500, False)])
async def test_a_status_of_the_engine_is_its_error(
    places: Places, where: EngineCall, status: int, pushed_back: bool
) -> None:
    async with places.engine(plan_of(where, "status", status=status)) as (engine, scripted):
        with pytest.raises(EngineError) as caught:
            await engine.generate([1], PARAMS, rid=f"{SESSION}:{CALLS[where]}:0")
        error = caught.value
        assert (error.status, error.retryable, error.pushed_back) == (status, True, pushed_back)
        assert not scripted.seen.requests


@pytest.mark.parametrize("where", CALLS)
@pytest.mark.parametrize(("what", "retryable"), [("cut", True), ("garbage", False)])
async def test_a_reply_that_is_lost_was_sampled(
    places: Places, where: EngineCall, what: FaultKind, retryable: bool
) -> None:
    async with places.engine(plan_of(where, what)) as (engine, scripted):
        with pytest.raises(EngineError) as caught:
            await engine.generate([1], PARAMS, rid=f"{SESSION}:{CALLS[where]}:0")
        assert caught.value.retryable is retryable
        assert len(scripted.seen.requests) == 1


@pytest.mark.parametrize("where", CALLS)
async def test_an_aborted_generation_is_a_part_of_one(places: Places, where: EngineCall) -> None:
    async with places.engine(plan_of(where, "abort", k=1)) as (engine, _):
        cut = await engine.generate([1], PARAMS, rid=f"{SESSION}:{CALLS[where]}:0")
        whole = await engine.generate([1], PARAMS, rid=f"{SESSION}:{CALLS[where]}:1")
        assert (cut.finish_reason, whole.finish_reason) == ("abort", "stop")
        assert cut.output_ids.tolist() == whole.output_ids.tolist()[: len(cut.output_ids)]
        assert 0 < len(cut.output_ids) == len(cut.logprobs) < len(whole.output_ids)


async def test_weights_that_change_in_mid_turn_show_in_its_version(places: Places) -> None:
    async with places.engine(plan_of("turn", "weight_update", k=2)) as (engine, _):
        versions = [
            (await engine.generate([1], PARAMS, rid=f"{SESSION}:main:{n}")).weight_version
            for n in range(3)
        ]
        assert versions == [1, 2, 1]


@pytest.mark.parametrize("where", CALLS)
async def test_a_client_that_goes_away_aborts_its_turn_and_may_come_again(
    places: Places, where: EngineCall
) -> None:
    hints: dict[str, str] = {} if where == "turn" else {"x-claude-code-request-class": where}
    if where == "subagent":
        hints["x-claude-code-agent-id"] = "looker"
    rule = FaultRule.model_validate({"where": where, "what": "disconnect", "when": {"k": 1}})
    section = PlannedFaultsConfig(kind="chaos", seed=0, rules=(rule,))
    async with (
        ScriptedEngine() as engine,
        running_gateway(
            engine.url,
            places.tokenizer,
            places.tmp_path / "run",
            make_run=False,
            hooks=make_gateway_hooks(section),
        ) as gateway,
    ):
        engine.always = Completion("I am done.<|im_end|>")
        agent = await gateway.session(SESSION)
        body = agent.body([{"role": "user", "content": "Hi."}])
        with pytest.raises((aiohttp.ServerDisconnectedError, ConnectionResetError)):
            await agent.post("/v1/messages", body, **hints)
        status, _ = await agent.post("/v1/messages", body, **hints)
        assert status == 200
        stats = await agent.stats()
        assert (stats["turns"], stats["aborted"]) == (1, 1)
    assert places.injected() == [(where, "disconnect", ROLLOUT, 1)]
