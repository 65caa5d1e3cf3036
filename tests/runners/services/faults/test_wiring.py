"""A fault plan around the services of a driver and its gateway: faults for whole rollouts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from conf.sections.faults import FaultRule, PlannedFaultsConfig
from runners.engines.client import HttpEngine
from runners.gateway.client import GatewayAdmin
from runners.gateway.service import NO_HOOKS
from runners.observe.figures.metrics import MetricsWriter
from runners.records.outcome import OutcomeClass, Stage
from runners.records.record import RolloutRecord
from runners.rollouts.attempt import execute_here
from runners.rollouts.contract import AttemptContext, RolloutSpec
from runners.rollouts.pool import Pool
from runners.rollouts.reward import make_reward
from runners.services.faults.wiring import (
    choose_gateway_module,
    driver_faults,
    make_gateway_hooks,
    metrics_faults,
    pop_gateway_hooks,
)
from runners.system.concurrency.limits import Admission, TokenBucket
from runners.system.diagnostics.attempt_progress import AttemptWatch
from runners.system.processes.ledger import Ledger, StoreRecorder
from runners.system.processes.service import Service
from tests.fakes.rollout_parts import CallingHarness, FolderBackend, ListedGrader
from tests.fakes.running_gateway import Gateway, running_gateway, settings_for
from tests.runners.services.faults.run_parts import ROLLOUT, SESSION, RunParts

pytestmark = pytest.mark.integration

NONE = PlannedFaultsConfig(kind="none", seed=0, rules=())
PLANNED: list[tuple[dict[str, Any], OutcomeClass | None, Stage | None]] = [
    ({"where": "session", "what": "error"}, OutcomeClass.INFRA, Stage.SESSION),
    ({"where": "session", "what": "cut"}, OutcomeClass.INFRA, Stage.SESSION),
    ({"where": "sandbox_boot", "what": "status", "status": 429}, OutcomeClass.INFRA, Stage.BOOT),
    ({"where": "sandbox_boot", "what": "hang"}, OutcomeClass.INFRA, Stage.BOOT),
    ({"where": "sandbox_boot", "what": "hostile"}, None, Stage.BOOT),
    ({"where": "turn", "what": "status", "status": 503, "when": {"k": 1}}, None, None),
    ({"where": "turn", "what": "abort", "when": {"k": 1}}, None, None),
    ({"where": "finish", "what": "garbage"}, OutcomeClass.INTERNAL, Stage.FINISH),
    ({"where": "finish", "what": "hang"}, OutcomeClass.INFRA, Stage.FINISH),
    # k=2: the agent of these tests opens the workspace first, to write its answer.
    (
        {"where": "patch", "what": "cancelled", "when": {"k": 2}},
        OutcomeClass.INTERNAL,
        Stage.PATCH,
    ),
    ({"where": "grade", "what": "error"}, OutcomeClass.GRADER, Stage.GRADE),
    ({"where": "grade", "what": "timeout"}, OutcomeClass.GRADER, Stage.GRADE),
    ({"where": "teardown", "what": "error"}, None, None),
    ({"where": "teardown", "what": "hang", "when": {"k": 2}}, None, None),
]
"""A rule for the rollout of that number; its first attempt's class (None: any) and stage (None: it
counts all the same).
"""


def rollout_id(number: int) -> str:
    return f"train-000001-000-{number:02d}"


def make_section() -> PlannedFaultsConfig:
    rules = [
        FaultRule.model_validate(
            rule | {"when": {"attempts": 1, "rollouts": rollout_id(number)} | rule.get("when", {})}
        )
        for number, (rule, _, _) in enumerate(PLANNED)
    ]
    return PlannedFaultsConfig(kind="chaos", seed=0, rules=tuple(rules))


def make_context(parts: RunParts, gateway: Gateway, backend: FolderBackend) -> AttemptContext:
    """Return a context of fakes that keep their contracts, and of a real gateway."""
    short = compose(["rollout.deadlines={boot_s:3,turn_s:3,teardown_s:5}"])
    return AttemptContext(
        backend=backend,
        harness=CallingHarness(),
        grader=ListedGrader(),
        gateway=gateway.admin,
        gateway_url=gateway.url,
        gateway_control=Path(gateway.control),
        deadlines=short.rollout.deadlines,
        reward=make_reward(short.reward),
        scenario="linear",
        sandbox_starts=TokenBucket(None),
        watch=AttemptWatch(),
    )


async def test_each_rollout_meets_its_fault_once_and_is_solved_in_the_end(parts: RunParts) -> None:
    section, backend = make_section(), parts.folders()
    done: list[RolloutRecord] = []
    async with (
        ScriptedEngine() as engine,
        running_gateway(
            engine.url,
            parts.tokenizer,
            parts.tmp_path / "run",
            make_run=False,
            hooks=make_gateway_hooks(section),
            engine_attempts=3,
        ) as gateway,
    ):
        engine.always = Completion("I am done.<|im_end|>")
        with driver_faults(section, parts.store) as wiring:
            context = wiring.wrap_context(make_context(parts, gateway, backend))
            store = wiring.wrap_store(parts.store)
            pool = Pool(
                replace(context, backend=wiring.wrap_backend(backend)),
                store,
                execute_here(StoreRecorder(store, Ledger(parts.store))),
                admission=Admission(5, adaptive=False),
                attempts=3,
                breaker=100,
                draining=asyncio.Event(),
                on_done=done.append,
            )
            await pool.run(
                [
                    RolloutSpec(rollout_id(n), "train", 1, 0, n, parts.task, n, 1.0)
                    for n in range(len(PLANNED))
                ]
            )
        async with gateway.http.get(f"{gateway.url}/health") as answer:
            assert (await answer.json())["sessions"] == 0
    assert not backend.alive
    assert len(done) == len(PLANNED)
    assert all(record.solved for record in done)
    first = {record.member: record for record in parts.store.rollouts() if not record.attempt}
    for number, (_, outcome_class, stage) in enumerate(PLANNED):
        record = first[number]
        assert record.counts == (stage is None), record.outcome
        assert stage in (None, record.outcome.stage), record.outcome
        assert outcome_class in (None, record.outcome.outcome_class), record.outcome
    planned = {
        (rule["where"], rule["what"], rollout_id(n)) for n, (rule, _, _) in enumerate(PLANNED)
    }
    assert {(where, what, name) for where, what, name, _ in parts.injected()} == planned


async def test_without_a_plan_every_part_is_returned_itself(parts: RunParts) -> None:
    client, backend = HttpEngine("http://127.0.0.1:9"), parts.folders()
    metrics = MetricsWriter(parts.store.run_dir, tensorboard=False)
    with driver_faults(NONE, parts.store) as wiring:
        assert wiring.wrap_backend(backend) is backend
        assert wiring.wrap_engine(client) is client
    assert metrics_faults(NONE, parts.store, metrics) is metrics
    assert make_gateway_hooks(NONE) == NO_HOOKS
    assert choose_gateway_module(NONE, {"host": "h"}) == ("runners.gateway", {"host": "h"})


def test_the_gateway_process_removes_the_plan_from_its_settings() -> None:
    module, settings = choose_gateway_module(make_section(), {"host": "h"})
    assert module == "runners.services.faults"
    assert pop_gateway_hooks(settings) != NO_HOOKS
    assert settings == {"host": "h"}


async def test_the_gateway_of_a_run_with_a_plan_injects_and_records_it(
    parts: RunParts,
) -> None:
    rule = FaultRule.model_validate({"where": "turn", "what": "status", "status": 500})
    section = PlannedFaultsConfig(kind="chaos", seed=0, rules=(rule,))
    async with ScriptedEngine() as engine:
        engine.always = Completion("I am done.<|im_end|>")
        run_dir = parts.tmp_path / "run"
        module, settings = choose_gateway_module(
            section, settings_for(engine.url, parts.tokenizer, run_dir).model_dump(mode="json")
        )
        log = parts.tmp_path / "gateway.log"
        service = await Service.start("gateway", module, settings, log=log, deadline_s=60)
        admin = GatewayAdmin(service.info["url"], service.info["admin_key"])
        try:
            _, key = await admin.create_session(SESSION)
            async with aiohttp.ClientSession(headers={"x-api-key": key}) as http:
                body = {"model": "m", "max_tokens": 9, "messages": []}
                body["messages"] = [{"role": "user", "content": "Hi."}]
                url = f"{service.info['url']}/v1/messages"
                async with http.post(url, json=body) as response:
                    assert response.status == 529
        finally:
            await admin.close()
            await service.stop()
    assert parts.injected() == [("turn", "status", ROLLOUT, 1)]
    assert not engine.seen.requests
