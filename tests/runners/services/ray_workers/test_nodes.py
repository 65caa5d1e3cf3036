"""Attempts on nodes: a lost node takes nothing with it that counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.testing.completions import Completion
from conf.errors import ExitCode
from runners.gateway.client import GatewayAdmin
from runners.gateway.refusal import GatewayError
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.session_summary import SessionSummary
from runners.rollouts.contract import AttemptContext, AttemptResult, RolloutSpec, make_record
from runners.rollouts.pool import BreakerOpen
from runners.services.ray_workers.errors import ExecutorError
from runners.services.ray_workers.executor import RayExecutor
from runners.services.ray_workers.worker import Worker
from runners.system.concurrency.limits import TokenBucket
from runners.system.diagnostics.stalls import describe_attempts
from runners.system.processes.ledger import StoreRecorder
from runners.tasks.contract import Task
from tests.fakes.nodes_without_ray import DeafWorker, OneNode
from tests.runners.services.ray_workers.world import SOLUTION, World, ray_section, use, world

HANG = Completion(delay_s=60)
QUICK = (
    "rollout.deadlines="
    "{boot_s:0.1,harness_s:0.1,patch_s:0.1,grade_s:0.1,teardown_s:0.5,guard_s:1.0}"
)
pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_cache")]


async def lose_at_the_second_turn(here: World) -> None:
    """Lose the node while the agent waits for its second turn."""
    assert here.node is not None
    while len(here.engine.seen.requests) < 2:
        await asyncio.sleep(0.01)
    here.node.lose()


async def begin(here: World, deaf: DeafWorker) -> asyncio.Task[AttemptResult]:
    """Have an attempt come to a worker that never ends it."""
    running = asyncio.create_task(here.attempt())
    while not deaf.orders:
        await asyncio.sleep(0.01)
    return running


async def test_a_lost_nodes_attempt_is_an_infrastructure_failure(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("node", tmp_path, tokenizer_dir) as here:
        here.engine.say(SOLUTION[0], HANG)
        losing = asyncio.create_task(lose_at_the_second_turn(here))
        finished = await here.attempt()
        await losing
        record = finished.record
        assert record.outcome.code is OutcomeCode.INFRA_NODE_LOST
        assert record.outcome.meaning.retryable
        assert "somebody pulled the plug" in record.outcome.message
        assert (record.turns, record.extra["node"]) == (1, "node/1")
        assert record.sampled_tokens > 0
        assert not finished.shared
        assert await here.gateway.admin.healthy()
        with pytest.raises(GatewayError, match="no session"):  # it takes no more turns
            await here.gateway.admin.stats(record.session_id)
        assert here.ledger.entries() == []
        [event] = here.store.events("node_lost")
        assert event.data == {"node": "node/1", "reason": "somebody pulled the plug"}


async def test_attempts_that_a_node_takes_with_it_are_one_failure(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("node", tmp_path, tokenizer_dir) as here:
        here.engine.always = HANG
        losing = asyncio.create_task(lose_at_the_second_turn(here))
        done = await asyncio.gather(
            *(here.execute(here.context, here.spec(member), 0, 0.0) for member in range(3))
        )
        await losing
        assert {each.record.outcome.code for each in done} == {OutcomeCode.INFRA_NODE_LOST}
        assert sorted(each.shared for each in done) == [False, True, True]


@pytest.mark.parametrize("shared", [True, False])
async def test_the_breaker_counts_a_shared_failure_once(
    shared: bool, tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("here", tmp_path, tokenizer_dir) as here:

        async def lost(
            context: AttemptContext, spec: RolloutSpec, number: int, queued_s: float
        ) -> AttemptResult:
            outcome = Outcome(OutcomeCode.INFRA_NODE_LOST, Stage.QUEUE)
            return AttemptResult(
                make_record(spec, number, outcome, SessionSummary()), False, shared=shared
            )

        here.execute = lost
        pool = here.pool(attempts=3, breaker=3)
        if shared:
            [record] = await pool.run([here.spec()])
            assert record.counts
        else:
            with pytest.raises(BreakerOpen):
                await pool.run([here.spec()])


async def test_what_a_lost_worker_still_sends_is_not_stored(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("node", tmp_path, tokenizer_dir) as here:
        assert here.node is not None
        here.engine.always = HANG
        running = asyncio.create_task(here.attempt())
        await here.engine.arrived.wait()
        here.node.lose()
        here.store.put_rollout((await running).record)
        await here.node.stop()  # its worker has cancelled the attempt, and recorded that
        [record] = here.store.rollouts()
        assert record.outcome.code is OutcomeCode.INFRA_NODE_LOST
        assert here.ledger.entries() == []


async def test_a_silent_worker_is_lost_and_its_attempt_retried_on_a_new_one(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    workers: Iterator[Callable[[str], Any]] = iter([lambda _: DeafWorker(silent=True), Worker])
    async with world(
        "node", tmp_path, tokenizer_dir, make_worker=lambda node: next(workers)(node), silence_s=4.0
    ) as here:
        here.engine.say(*SOLUTION)
        [record] = await here.pool().run([here.spec()])
        assert (record.attempt, record.solved) == (1, True)
        lost, solved = here.store.rollouts()
        assert lost.outcome.code is OutcomeCode.INFRA_NODE_LOST
        assert "its worker did not answer for 4 s" in lost.outcome.message
        assert solved.outcome.code is OutcomeCode.POLICY_FINISHED


async def test_a_cancelled_attempt_has_a_record_though_its_worker_is_silent(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    deaf = DeafWorker()
    async with world("node", tmp_path, tokenizer_dir, QUICK, make_worker=lambda _: deaf) as here:
        running = await begin(here, deaf)
        [flight] = here.context.watch.in_flight()
        deaf.stages = {flight.session_id: Stage.HARNESS}
        while flight.stage == Stage.QUEUE:
            await asyncio.sleep(0.01)
        assert "in stage harness on node/1" in describe_attempts(here.context.watch)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        [record] = here.store.rollouts()
        assert (record.outcome.code, record.outcome.stage) == (
            OutcomeCode.CANCELLED_USER,
            Stage.HARNESS,
        )
        assert [order.split()[0] for order in deaf.orders] == ["run", "cancel"]


async def test_an_attempt_waits_for_room_on_a_node_and_may_be_cancelled_meanwhile(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    deaf, section = DeafWorker(), ray_section("executor.rollouts_per_node=1")
    async with world(
        "node", tmp_path, tokenizer_dir, QUICK, make_worker=lambda _: deaf, section=section
    ) as here:
        first = await begin(here, deaf)
        second = asyncio.ensure_future(here.execute(here.context, here.spec(1), 0, 0.0))
        await asyncio.sleep(0.1)
        assert len(deaf.orders) == 1
        for running in (second, first):
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        codes = {record.member: record.outcome.code for record in here.store.rollouts()}
        assert codes == dict.fromkeys((0, 1), OutcomeCode.CANCELLED_USER)


async def test_a_grading_of_a_cancelled_attempt_ends_with_its_worker(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("node", tmp_path, tokenizer_dir) as here:
        here.engine.say(*SOLUTION)
        running = asyncio.create_task(here.attempt())
        while not any(entry.name.startswith("grading-") for entry in here.ledger.entries()):
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert isinstance(here.execute, RayExecutor)
        await here.execute.close()
        assert here.ledger.entries() == []


async def test_the_rate_of_sandboxes_is_that_of_all_nodes_together(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("node", tmp_path, tokenizer_dir) as here:
        here.engine.always = use("Submit", message="nothing")
        bucket = TokenBucket(5.0)
        await bucket.take()
        here.context = replace(here.context, sandbox_starts=bucket)
        record = (await here.attempt()).record
        assert record.timings["queue"] >= 0.5 + 0.1


async def test_a_nodes_name_and_the_guarantees_of_its_sandboxes_are_recorded(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("node", tmp_path, tokenizer_dir) as here:
        [event] = here.store.events("node")
        assert event.data["node"] == "node/1"
        assert event.data["guarantees"] == here.context.backend.guarantees() | {
            "workspaces": event.data["guarantees"]["workspaces"]
        }


@pytest.mark.parametrize(
    ("make_worker", "reason"),
    [
        (Worker, "node node/1: the gateway is not reached at http://127"),
        (
            lambda _: DeafWorker(found={"agentrl": "sources 0"}),
            r"node node/1: another agentrl \(sources 0\) than the driver's .* the same on",
        ),
    ],
    ids=["gateway", "agentrl"],
)
async def test_a_node_that_cannot_work_is_refused_at_the_start(
    make_worker: Callable[[str], Any], reason: str, tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("here", tmp_path, tokenizer_dir) as here:
        node = OneNode(make_worker)
        executor = RayExecutor(ray_section(), node, here.store, here.ledger)
        nowhere = GatewayAdmin("http://127.0.0.1:9", "k")
        recorder = StoreRecorder(here.store, here.ledger)
        with pytest.raises(ExecutorError, match=reason) as refused:
            await executor.start(here.config, nowhere, here.context, recorder)
        assert refused.value.exit_code is ExitCode.PREFLIGHT
        await executor.close()
        await node.stop()


async def test_calls_that_arrive_in_another_order_begin_no_cancelled_attempt() -> None:
    worker = Worker("node/1")
    await worker.cancel("train-000001-000-00-a0")
    task = Task("t", "train", Path("/repo"), "c" * 40, "fix", ("a",), ("c",), (), "diff", "bug")
    spec = RolloutSpec("train-000001-000-00", "train", 1, 0, 0, task, 7, 0.5)
    assert await worker.run(spec, 0, 0.0) is None
