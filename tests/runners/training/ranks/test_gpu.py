"""Ranks on GPUs (NCCL): one alone, and two that train what one trains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from runners.training import checkpoint
from tests.fakes.local_trainer import VOCAB, make_rollouts, make_trainer
from tests.fakes.started_ranks import StartedRanks, save_ranks
from tests.fakes.tiny_model import write_tiny_model

pytestmark = pytest.mark.gpu


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[StartedRanks]:
    weights = write_tiny_model(tmp_path / "policy", vocab_size=VOCAB)
    started = StartedRanks(tmp_path / "run", weights)
    yield started
    await started.exits.aclose()
    started.store.close()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("shard", ["none", "optimizer", "model"])
async def test_ranks_on_gpus_train_what_one_process_trains(
    run: StartedRanks, tmp_path: Path, ranks: int, precision: str, shard: str
) -> None:
    if (ranks, shard) == (1, "model"):
        pytest.skip("one process divides nothing")
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    rollouts = make_rollouts(make_trainer(run.weights), 6)
    alone = make_trainer(run.weights, device="cuda", precision=precision)
    expected = alone.step(rollouts)
    trainer = await run.start(ranks=ranks, device="cuda", precision=precision, shard=shard)
    done = await asyncio.to_thread(trainer.step, rollouts)
    assert done["loss/policy"] == pytest.approx(expected["loss/policy"], abs=1e-3)
    saved = await asyncio.to_thread(save_ranks, trainer, tmp_path / "checkpoints", 1)
    resumed = make_trainer(run.weights, device="cuda", precision=precision)
    checkpoint.restore(resumed, saved)
    limit = 1e-5 if precision == "float32" else 1e-4
    for name, value in alone.weights.trained.items():
        difference = (resumed.weights.trained[name] - value).abs()
        assert (difference > limit).float().mean() < 1e-3, name
