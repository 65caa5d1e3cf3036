"""A trainer of two processes: its commands, its checkpoints, and its ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from conf.errors import ExitCode
from runners.records.checkpoints import Checkpoint
from runners.system.processes.service import ServiceError
from runners.training import checkpoint
from runners.training.ranks.client import (
    RankFailed,
    RankLost,
    TrainerRanks,
)
from tests.fakes.local_trainer import VOCAB, make_rollouts, make_trainer
from tests.fakes.started_ranks import StartedRanks, save_ranks
from tests.fakes.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny policy."""
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


@pytest.fixture
async def run(tmp_path: Path, weights: Path) -> AsyncIterator[StartedRanks]:
    started = StartedRanks(tmp_path / "run", weights)
    yield started
    await started.exits.aclose()
    assert started.ledger.entries() == []
    started.store.close()


def pids(trainer: TrainerRanks) -> list[int]:
    return [service.pid for service in trainer._services]


async def test_steps_checkpoints_and_a_resume_with_one_process(
    run: StartedRanks, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")  # as on the machines of a cluster
    alone = make_trainer(weights)
    rollouts = make_rollouts(alone, 6)
    ranks = await run.start()
    assert len(run.ledger.entries()) == 2
    done = await asyncio.to_thread(ranks.step, rollouts)
    expected = alone.step(rollouts)
    assert done.keys() == expected.keys()
    assert done["loss/policy"] == pytest.approx(expected["loss/policy"], abs=1e-6)
    saved = await asyncio.to_thread(save_ranks, ranks, tmp_path / "checkpoints", 1)
    assert saved.state() == {"metrics": {"a": 1.5}}
    resumed = make_trainer(weights, seed=5)
    checkpoint.restore(resumed, saved)
    for one, other in zip(alone.model.parameters(), resumed.model.parameters(), strict=True):
        assert (one - other).abs().mean() < 1e-6  # AdamW enlarges rounding in single weights
    await asyncio.to_thread(ranks.step, rollouts)
    second = await asyncio.to_thread(save_ranks, ranks, tmp_path / "checkpoints", 2)
    again = await run.start(saved)
    await asyncio.to_thread(again.step, rollouts)
    third = await asyncio.to_thread(save_ranks, again, tmp_path / "again", 2)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (second.path / name).read_bytes() == (third.path / name).read_bytes(), name
    assert run.gone == []
    for pid in pids(ranks):
        found = psutil.Process(pid).net_connections("inet")
        assert found
        assert {each.laddr.ip for each in found} == {"127.0.0.1"}
    rollouts[0] = [replace(rollouts[0][0], advantage=float("inf"))]
    with pytest.raises(RankFailed, match=r"is not finite .* lower trainer\.learning_rate"):
        await asyncio.to_thread(ranks.step, rollouts)
    assert run.gone == [], "after an error the processes wait for their end"


async def test_one_process_beside_the_campaign_trains_bit_for_bit_like_one_in_it(
    run: StartedRanks, weights: Path, tmp_path: Path
) -> None:
    here = make_trainer(weights)
    rollouts = make_rollouts(here, 6)
    beside = await run.start(ranks=1)
    expected = here.step(rollouts)
    done = await asyncio.to_thread(beside.step, rollouts)
    assert {**done, "time/train_s": 0} == {**expected, "time/train_s": 0}
    assert beside.refused == here.refused
    saved = await asyncio.to_thread(save_ranks, beside, tmp_path / "beside", 1)
    wanted = save_ranks(here, tmp_path / "here", 1)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (saved.path / name).read_bytes() == (wanted.path / name).read_bytes(), name


async def test_a_sharded_policy_has_the_checkpoints_of_a_whole_one(
    run: StartedRanks, tmp_path: Path
) -> None:
    """Go on with other numbers of processes, and from and to other choices of trainer.shard."""
    alone = make_trainer(run.weights, warmup_steps=3)
    rollouts = make_rollouts(alone, 6)
    saved: Checkpoint | None = None
    for step, (shard, count) in enumerate([("optimizer", 2), ("model", 3)], 1):
        ranks = await run.start(saved, shard=shard, ranks=count, warmup_steps=3)
        await asyncio.to_thread(ranks.step, rollouts)
        saved = await asyncio.to_thread(save_ranks, ranks, tmp_path / f"{step}", step)
        alone.step(rollouts)
        resumed = make_trainer(run.weights)
        checkpoint.restore(resumed, saved)
        whole = save_ranks(resumed, tmp_path / "whole", step)
        for file in ("model.safetensors", "optimizer.safetensors", "config.json"):
            assert (saved.path / file).read_bytes() == (whole.path / file).read_bytes(), file
        for name, value in alone.weights.trained.items():
            found = resumed.weights.trained[name]
            assert (value - found).abs().mean() < 1e-6, (shard, name)
            for key in ("exp_avg", "exp_avg_sq", "step"):
                wanted = alone.optimizer.state[value][key]
                torch.testing.assert_close(
                    resumed.optimizer.state[found][key], wanted, rtol=1e-3, atol=1e-6
                )


@pytest.mark.parametrize("shard", ["none", "model"])
async def test_a_rank_that_is_killed_in_the_middle_of_a_step_holds_nobody_up(
    run: StartedRanks, shard: str
) -> None:
    ranks = await run.start(epochs=500, shard=shard)
    rollouts = make_rollouts(make_trainer(run.weights), 4)
    step = asyncio.create_task(asyncio.to_thread(ranks.step, rollouts))
    await asyncio.sleep(1.0)
    assert not step.done(), "500 epochs take longer"
    os.kill(pids(ranks)[0], signal.SIGKILL)
    with pytest.raises(RankLost, match=r"process 0 of the trainer's 2 .*--resume") as caught:
        await step
    assert caught.value.exit_code == ExitCode.SERVICE_GONE
    answer = await asyncio.to_thread(ranks._receive, 1)
    assert answer["peers_lost"], "wherever in a pass it lost the other"
    async with asyncio.timeout(30):
        while not run.gone:  # the watch of the process notices its end by itself
            await asyncio.sleep(0.01)
    assert any("trainer-0 ended unexpectedly (exit -9)" in str(error) for error in run.gone)
    await run.exits.aclose()
    assert not any(psutil.pid_exists(pid) for pid in pids(ranks))


async def test_a_rank_that_hangs_is_named_and_ended(run: StartedRanks) -> None:
    ranks = await run.start(exchange_s=3.0, shard="model")
    rollouts = make_rollouts(make_trainer(run.weights), 4)
    os.kill(pids(ranks)[1], signal.SIGSTOP)
    named = r"process 1 of the trainer's 2 does not answer .*cannot exchange.*--resume"
    with pytest.raises(RankLost, match=named):
        await asyncio.to_thread(ranks.step, rollouts)
    await run.exits.aclose()
    assert not any(psutil.pid_exists(pid) for pid in pids(ranks))


async def test_ranks_end_with_their_parent(run: StartedRanks) -> None:
    ranks = await run.start(epochs=500)
    rollouts = make_rollouts(make_trainer(run.weights), 4)
    step = asyncio.create_task(asyncio.to_thread(ranks.step, rollouts))
    await asyncio.sleep(0.5)
    for service in ranks._services:
        assert service._process.stdin is not None
        service._process.stdin.close()  # as the kernel does when the parent dies
    with pytest.raises(RankLost):
        await step
    async with asyncio.timeout(30):
        while any(psutil.pid_exists(pid) for pid in pids(ranks)):
            await asyncio.sleep(0.05)


async def test_a_rank_that_cannot_load_the_policy_stops_the_start_of_all(
    run: StartedRanks, tmp_path: Path
) -> None:
    run.weights = tmp_path / "nothing"
    with pytest.raises(ServiceError, match=r"trainer-[01] did not start .*cannot load the policy"):
        await run.start()
