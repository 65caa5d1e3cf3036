"""Every kind of failure at every boundary: each rollout keeps its record, siblings and baselines
are untouched, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from conf.compose import compose
from conf.fault_table import Boundary
from conf.sections.faults import FaultRule, PlannedFaultsConfig
from runners.records.outcome import OutcomeCode
from runners.records.record import RolloutRecord
from runners.records.routing import RoutingShape
from runners.rollouts.attempt import execute_here
from runners.rollouts.contract import HarnessContext, HarnessResult, RolloutSpec
from runners.rollouts.pool import Pool
from runners.sandboxes.contract import Sandbox
from runners.services.faults.wiring import driver_faults, make_gateway_hooks
from runners.system.processes.ledger import Ledger, StoreRecorder
from runners.tasks.contract import Task, Verdict, VerdictKind
from runners.tasks.grading import RolloutResult
from runners.training.advantages import StepGroups
from runners.training.step_samples import (
    LoadRollout,
    StepSamples,
    StoredRollout,
    build_samples,
    load_rollout,
)
from tests.fakes.hostile import exceptions
from tests.fakes.rollout_parts import PatchGrader, make_result
from tests.runners.rollouts.world import World, world

KINDS = ("exception", "cancelled", "timeout", "hostile")
FATAL: dict[Boundary, set[OutcomeCode]] = {
    "session": {OutcomeCode.INTERNAL_ERROR, OutcomeCode.INFRA_GATEWAY},
    "sandbox_boot": {OutcomeCode.INTERNAL_ERROR, OutcomeCode.INFRA_SANDBOX_START},
    "turn": {OutcomeCode.INTERNAL_ERROR},
    "subagent": {OutcomeCode.INTERNAL_ERROR},
    "compaction": {OutcomeCode.INTERNAL_ERROR},
    "finish": {OutcomeCode.INTERNAL_ERROR, OutcomeCode.INFRA_GATEWAY},
    "patch": {OutcomeCode.INTERNAL_ERROR, OutcomeCode.INFRA_SANDBOX_LOST},
    "store": {OutcomeCode.INTERNAL_ERROR},
    "grade": {OutcomeCode.GRADER_ERROR},
}
"""Boundaries at which a failure costs the attempt, with its possible outcomes."""
HARMLESS: tuple[Boundary, ...] = ("deliver", "teardown")
SHAPE = RoutingShape(layers=2, top_k=2, experts=8, routed=(0, 1))
CONFIG = compose([])
SEED = 8
"""With it, the hostile exception of a write is not the store's own: that one ends a run."""
VICTIM = 1
"""The member of each group that meets the fault."""


class BranchingAgent:
    """Takes a turn, sends a sub-agent and compacts its history, with Claude Code's headers."""

    def mounts(self) -> dict[str, Path]:
        """Need nothing."""
        return {}

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Work through the real gateway."""
        await self._ask(sandbox, context, "fix it")
        await self._ask(sandbox, context, "look", {"x-claude-code-agent-id": "a" + "0" * 16})
        await self._ask(sandbox, context, "sum up", {"x-claude-code-request-class": "compaction"})
        async with sandbox.on_host() as workspace:
            (workspace / "answer.txt").write_text(f"{sandbox.spec.name}\n")
        return make_result(OutcomeCode.POLICY_FINISHED, "all done")

    async def _ask(
        self,
        sandbox: Sandbox,
        context: HarnessContext,
        text: str,
        headers: Mapping[str, str] = {},
    ) -> None:
        tool = {"name": "Bash", "description": "", "input_schema": {"type": "object"}}
        message = {"role": "user", "content": text}
        body = {"model": "p", "max_tokens": 50, "messages": [message], "tools": [tool]}
        async with (
            aiohttp.ClientSession(trust_env=False) as http,
            http.post(
                f"{sandbox.gateway_url}/v1/messages",
                json=body,
                headers={"x-api-key": context.api_key, **headers},
            ) as response,
        ):
            if response.status != 200:
                raise RuntimeError(await response.text())
            await response.read()


class FirstTwoSolve(PatchGrader):
    """A grader that knows the members: 0 and 1 solve, 2 does not."""

    async def grade(
        self, task: Task, result: RolloutResult, *, name: str, deadline_s: float
    ) -> Verdict:
        """Judge by the name."""
        solved = "-02-a" not in name
        kind = VerdictKind.SOLVED if solved else VerdictKind.UNSOLVED
        return Verdict(kind, int(solved), 1, 1, 1, "", "", 0.0)


def plan(where: Boundary) -> PlannedFaultsConfig:
    """A plan in which the victim of each group meets one kind of failure, once."""
    rules = [
        {
            "where": where,
            "what": kind,
            "when": {"rollouts": f"train-000001-{group:03d}-{VICTIM:02d}", "k": 1},
        }
        for group, kind in enumerate(KINDS)
    ]
    return PlannedFaultsConfig(
        kind="chaos", seed=SEED, rules=tuple(FaultRule.model_validate(rule) for rule in rules)
    )


async def run_groups(here: World, faults: PlannedFaultsConfig) -> list[RolloutRecord]:
    """Run three members of a group per kind under a plan, all at once."""
    context = replace(here.context, harness=BranchingAgent(), grader=FirstTwoSolve())
    with driver_faults(faults, here.store) as wiring:
        context = wiring.wrap_context(
            replace(context, backend=wiring.wrap_backend(context.backend))
        )
        store = wiring.wrap_store(here.store)
        pool = Pool(
            context,
            store,
            execute_here(StoreRecorder(store, Ledger(here.store))),
            admission=here.admission(8),
            attempts=1,
            breaker=100,
            draining=asyncio.Event(),
            on_done=here.done.append,
        )
        specs = [
            RolloutSpec(
                f"train-000001-{group:03d}-{member:02d}",
                "train",
                1,
                group,
                member,
                here.task,
                1,
                1.0,
            )
            for group in range(len(KINDS))
            for member in range(3)
        ]
        records = await pool.run(specs)
    return sorted(records, key=lambda record: record.rollout_id)


def build(records: list[RolloutRecord], load: LoadRollout) -> StepSamples:
    """Return the step's samples."""
    return build_samples(StepGroups(CONFIG, records), load, CONFIG)


def check(step: StepSamples, victims_advantage: float | None, others: tuple[float, float]) -> None:
    """Compare every group with hand values: the rewards are 1 and 0, less the same penalties."""
    assert len(step.records) == 3 * len(KINDS)
    trained = iter(step.rollouts)
    for record in step.records:
        expected = (others[0], victims_advantage, others[1])[record.member]
        assert record.advantage == pytest.approx(expected)
        samples = [] if expected is None else next(trained)
        assert all(sample.rollout_id == record.rollout_id for sample in samples)
        if record.member != VICTIM:
            assert record.trained_tokens == sum(int(s.loss_mask.sum()) for s in samples) > 0
    assert next(trained, None) is None
    with_routing = {sample.routing is not None for samples in step.rollouts for sample in samples}
    assert len(with_routing) == 1, "a column is there for all samples or for none"


@pytest.mark.parametrize("where", FATAL)
async def test_a_failure_costs_its_own_attempt_and_nothing_else(
    tmp_path: Path, task: Task, where: Boundary
) -> None:
    faults = plan(where)
    async with world(tmp_path, task, hooks=make_gateway_hooks(faults), engine_attempts=1) as here:
        records = await run_groups(here, faults)
        for record in records:
            if record.member == VICTIM:
                assert record.outcome.code in FATAL[where], record.outcome
                assert record.reward is None
                assert len(record.outcome.message) <= 512
            else:
                assert record.outcome.code is OutcomeCode.POLICY_FINISHED, record.outcome
        assert len(here.store.events("fault")) == len(KINDS)
        for shape in (None, SHAPE):
            check(build(records, partial(load_rollout, here.store, shape)), None, (1.0, -1.0))


@pytest.mark.parametrize("where", HARMLESS)
async def test_a_failure_after_the_grading_costs_nothing(
    tmp_path: Path, task: Task, where: Boundary
) -> None:
    faults = plan(where)
    async with world(tmp_path, task, hooks=make_gateway_hooks(faults)) as here:
        records = await run_groups(here, faults)
        assert {record.outcome.code for record in records} == {OutcomeCode.POLICY_FINISHED}
        assert len(here.store.events("fault")) == len(KINDS)
        kind = {"deliver": "write_failed", "teardown": "teardown_failed"}[where]
        assert len(here.store.events(kind)) == len(KINDS)
        for shape in (None, SHAPE):
            check(
                build(records, partial(load_rollout, here.store, shape)),
                2**-0.5,
                (2**-0.5, -(2**0.5)),
            )


async def test_rollouts_that_cannot_be_read_train_nothing_and_keep_their_rewards(
    tmp_path: Path, task: Task
) -> None:
    none = PlannedFaultsConfig(kind="none", seed=0, rules=())
    async with world(tmp_path, task) as here:
        records = await run_groups(here, none)

        def load(
            record: RolloutRecord, *, failure: BaseException, shape: RoutingShape | None
        ) -> StoredRollout:
            if record.member == VICTIM:
                raise failure
            return load_rollout(here.store, shape, record)

        for failure in (*exceptions().values(), asyncio.CancelledError(), TimeoutError()):
            for shape in (None, SHAPE):
                step = build(records, partial(load, failure=failure, shape=shape))
                check(step, 2**-0.5, (2**-0.5, -(2**0.5)))
                victims = [record for record in step.records if record.member == VICTIM]
                assert {record.rollout_id for record in victims} == set(step.unbuilt)
                assert [record.trained_tokens for record in victims] == [0] * len(KINDS)
