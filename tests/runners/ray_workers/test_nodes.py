"""Attempts on nodes: a lost node takes nothing with it that counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conf.errors import ExitCode
from runners.concurrency.limits import TokenBucket
from runners.diagnostics.stalls import describe_attempts
from runners.gateway.gateway_error import GatewayError
from runners.processes.recorder import StoreRecorder
from runners.ray_workers.executor import RayExecutor
from runners.ray_workers.remote_errors import ExecutorError
from runners.ray_workers.wire import identity
from runners.ray_workers.worker import Worker
from runners.rollouts.attempt_record import make_record
from runners.rollouts.context import AttemptContext, AttemptResult
from runners.rollouts.pool import BreakerOpen
from runners.rollouts.spec import RolloutSpec
from runners.testing.completions import Completion
from runners.trajectory import ids
from runners.trajectory.outcome import Outcome, OutcomeCode, Stage
from runners.trajectory.session_summary import SessionSummary
from tests.fakes.nodes_without_ray import DeafWorker, RunsAttempts, one_node
from tests.runners.ray_workers.world import SOLUTION, World, ray_section, use, world

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
    while "start" not in deaf.orders:
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
        assert (await here.gateway.http.get(f"{here.gateway.url}/health")).status == 200
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
        assert here.node.running is not None
        await asyncio.wait([here.node.running])  # it has cancelled its attempt, and recorded that
        [record] = here.store.rollouts()
        assert record.outcome.code is OutcomeCode.INFRA_NODE_LOST
        assert here.ledger.entries() == []


async def test_a_silent_worker_is_lost_and_its_attempt_retried_on_a_new_one(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    workers: Iterator[RunsAttempts] = iter([DeafWorker(silent=True), Worker()])
    async with world(
        "node", tmp_path, tokenizer_dir, make_worker=lambda: next(workers), silence_s=1.0
    ) as here:
        here.engine.say(*SOLUTION)
        [record] = await here.pool().run([here.spec()])
        assert (record.attempt, record.solved) == (1, True)
        lost, solved = here.store.rollouts()
        assert lost.outcome.code is OutcomeCode.INFRA_NODE_LOST
        assert "its worker did not call for 1 s" in lost.outcome.message
        assert solved.outcome.code is OutcomeCode.POLICY_FINISHED


async def test_an_attempt_that_its_worker_never_ends_is_given_up(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    deaf = DeafWorker()
    async with world(
        "node", tmp_path, tokenizer_dir, QUICK, grace_s=0.0, make_worker=lambda: deaf
    ) as here:
        name = ids.session_id(here.spec().rollout_id, 0)
        here.ledger.register("session", name)
        await here.gateway.admin.create_session(name)
        running = await begin(here, deaf)
        [flight] = here.context.watch.in_flight()
        assert flight.stage == Stage.QUEUE  # waiting for room has no deadline
        deaf.stages = {flight.session_id: Stage.HARNESS}
        while flight.stage == Stage.QUEUE:
            await asyncio.sleep(0.01)
        assert "in stage harness on node/1" in describe_attempts(here.context.watch)
        record = (await running).record
        assert record.outcome.code is OutcomeCode.INTERNAL_GUARD
        assert record.outcome.stage is Stage.HARNESS
        assert deaf.orders == ["start", "cancel"]
        assert here.ledger.entries() == []
        with pytest.raises(GatewayError, match="no session") as gone:
            await here.gateway.admin.stats(name)
        assert gone.value.status == 404


async def test_a_cancelled_attempt_has_a_record_though_its_worker_is_silent(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    deaf = DeafWorker()
    async with world("node", tmp_path, tokenizer_dir, QUICK, make_worker=lambda: deaf) as here:
        running = await begin(here, deaf)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        [record] = here.store.rollouts()
        assert record.outcome.code is OutcomeCode.CANCELLED_USER


async def test_an_attempt_waits_for_room_on_a_node_and_may_be_cancelled_meanwhile(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    deaf, section = DeafWorker(), ray_section("executor.rollouts_per_node=1")
    async with world(
        "node", tmp_path, tokenizer_dir, QUICK, make_worker=lambda: deaf, section=section
    ) as here:
        first = await begin(here, deaf)
        second = asyncio.ensure_future(here.execute(here.context, here.spec(1), 0, 0.0))
        seen = deaf.polls
        while deaf.polls < seen + 2:
            await asyncio.sleep(0.01)
        assert deaf.orders == ["start"]
        for running in (second, first):
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        codes = {record.member: record.outcome.code for record in here.store.rollouts()}
        assert codes == dict.fromkeys((0, 1), OutcomeCode.CANCELLED_USER)


async def test_a_worker_may_still_report_the_stage_of_a_cancelled_attempt(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    deaf = DeafWorker()
    async with world("node", tmp_path, tokenizer_dir, QUICK, make_worker=lambda: deaf) as here:
        deaf.last_words = {ids.session_id(here.spec().rollout_id, 0): Stage.HARNESS}
        running = await begin(here, deaf)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert here.node is not None
        assert here.node.running is not None
        while deaf.last_words and not here.node.running.done():
            await asyncio.sleep(0.01)
        assert not deaf.last_words


async def test_a_grading_of_a_cancelled_attempt_ends_with_its_worker(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("node", tmp_path, tokenizer_dir) as here:
        here.engine.say(*SOLUTION)
        running = asyncio.create_task(here.attempt())
        grading = "train-000001-000-00-a0-grade"
        while grading not in {entry.name for entry in here.ledger.entries()}:
            await asyncio.sleep(0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert isinstance(here.execute, RayExecutor)
        await here.execute.close()
        assert here.ledger.entries() == []


async def test_the_end_of_rays_process_ends_the_run_and_not_the_attempt(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("node", tmp_path, tokenizer_dir) as here:
        assert here.node is not None
        here.engine.always = HANG
        running = asyncio.create_task(here.attempt())
        await here.engine.arrived.wait()
        await here.node.stop()
        with pytest.raises(ExecutorError, match="the process that speaks Ray is gone") as caught:
            await running
        assert caught.value.exit_code is ExitCode.SERVICE_GONE
        assert here.store.events("node_lost") == []


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


async def test_a_node_that_does_not_reach_the_gateway_is_refused(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    async with world("here", tmp_path, tokenizer_dir) as here, one_node(Worker) as node:
        executor = RayExecutor(ray_section(), await node.start(), here.store, here.ledger)
        nowhere = {"url": "http://127.0.0.1:9", "admin_key": "k"}
        recorder = StoreRecorder(here.store, here.ledger)
        with pytest.raises(
            ExecutorError, match="node node/1: the gateway is not reached at http://127"
        ) as refused:
            await executor.start(here.config, nowhere, here.context, recorder)
        assert refused.value.exit_code is ExitCode.PREFLIGHT
        await executor.close()


@dataclass
class OldWorker(DeafWorker):
    """A worker of another agentrl."""

    def identity(self) -> dict[str, str]:
        """Return what it is."""
        return identity() | {"agentrl": "sources 0"}


async def test_a_node_with_another_agentrl_is_refused(tmp_path: Path, tokenizer_dir: Path) -> None:
    async with world("here", tmp_path, tokenizer_dir) as here, one_node(OldWorker) as node:
        executor = RayExecutor(ray_section(), await node.start(), here.store, here.ledger)
        gateway = {"url": here.gateway.url, "admin_key": here.gateway.admin_key}
        recorder = StoreRecorder(here.store, here.ledger)
        with pytest.raises(
            ExecutorError,
            match=r"another agentrl \(sources 0\) than the driver's .* the same on",
        ):
            await executor.start(here.config, gateway, here.context, recorder)
        await executor.close()


def test_the_identity_of_an_installation_is_its_python_and_its_sources() -> None:
    said = identity()
    assert said == identity()
    assert set(said) == {"Python", "agentrl"}
