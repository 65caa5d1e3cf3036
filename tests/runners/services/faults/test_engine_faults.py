"""Faults that are special to model calls, each with the effect of the real failure."""

from __future__ import annotations

from typing import Literal

import aiohttp
import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.fault_table import FaultKind
from conf.sections.faults import FaultRule, PlannedFaultsConfig
from runners.engines.contract import EngineError, SamplingParams
from runners.services.faults.wiring import make_gateway_hooks
from tests.fakes.running_gateway import running_gateway
from tests.runners.services.faults.run_parts import ROLLOUT, SESSION, RunParts, make_plan

EngineCall = Literal["turn", "subagent", "compaction"]
CALLS: dict[EngineCall, str] = {
    "turn": "main",
    "subagent": "subagent",
    "compaction": "compaction",
}
PARAMS = SamplingParams(max_new_tokens=50)


@pytest.mark.parametrize("where", CALLS)
async def test_a_boundary_of_the_engine_is_hit_by_its_own_turns_only(
    parts: RunParts, where: EngineCall
) -> None:
    for branch in ("main", "subagent", "compaction", "side"):
        async with parts.engine(make_plan(where, "error")) as (engine, _):
            call = engine.generate([1], PARAMS, rid=f"{SESSION}:{branch}:0-001")
            if where in ("turn", branch):
                with pytest.raises(EngineError):
                    await call
            else:
                await call


@pytest.mark.parametrize("where", CALLS)
@pytest.mark.parametrize(("status", "pushed_back"), [(429, True), (503, True), (500, False)])
async def test_a_status_of_the_engine_becomes_an_engine_error(
    parts: RunParts, where: EngineCall, status: int, pushed_back: bool
) -> None:
    async with parts.engine(make_plan(where, "status", status=status)) as (engine, scripted):
        with pytest.raises(EngineError) as caught:
            await engine.generate([1], PARAMS, rid=f"{SESSION}:{CALLS[where]}:0")
        error = caught.value
        assert (error.status, error.retryable, error.pushed_back) == (status, True, pushed_back)
        assert not scripted.seen.requests


@pytest.mark.parametrize("where", CALLS)
@pytest.mark.parametrize(("what", "retryable"), [("cut", True), ("garbage", False)])
async def test_the_engine_sampled_although_the_reply_was_lost(
    parts: RunParts, where: EngineCall, what: FaultKind, retryable: bool
) -> None:
    async with parts.engine(make_plan(where, what)) as (engine, scripted):
        with pytest.raises(EngineError) as caught:
            await engine.generate([1], PARAMS, rid=f"{SESSION}:{CALLS[where]}:0")
        assert caught.value.retryable is retryable
        assert len(scripted.seen.requests) == 1


@pytest.mark.parametrize("where", CALLS)
async def test_an_aborted_generation_is_the_first_half(parts: RunParts, where: EngineCall) -> None:
    async with parts.engine(make_plan(where, "abort", k=1)) as (engine, _):
        cut = await engine.generate([1], PARAMS, rid=f"{SESSION}:{CALLS[where]}:0")
        whole = await engine.generate([1], PARAMS, rid=f"{SESSION}:{CALLS[where]}:1")
        assert (cut.finish_reason, whole.finish_reason) == ("abort", "stop")
        assert cut.output_ids.tolist() == whole.output_ids.tolist()[: len(cut.output_ids)]
        assert 0 < len(cut.output_ids) == len(cut.logprobs) < len(whole.output_ids)


async def test_a_weight_update_during_a_turn_raises_its_version(parts: RunParts) -> None:
    async with parts.engine(make_plan("turn", "weight_update", k=2)) as (engine, _):
        versions = [
            (await engine.generate([1], PARAMS, rid=f"{SESSION}:main:{n}")).weight_version
            for n in range(3)
        ]
        assert versions == [1, 2, 1]


@pytest.mark.parametrize("where", CALLS)
async def test_a_client_that_disconnects_aborts_its_turn_and_may_retry(
    parts: RunParts, where: EngineCall
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
            parts.tokenizer,
            parts.tmp_path / "run",
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
    assert parts.injected() == [(where, "disconnect", ROLLOUT, 1)]
