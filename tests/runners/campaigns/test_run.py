"""The parts of a campaign that are made before its first step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conf.compose import compose
from conf.sections.training import LocalTrainerConfig
from runners.training import checkpoint
from runners.training.ranks.campaign_trainer import make_trainer
from runners.training.ranks.settings import RankSettings
from tests.fakes.tiny_model import write_tiny_model


def test_a_resumed_campaign_trains_the_weights_of_its_checkpoint(tmp_path: Path) -> None:
    config = compose([])
    assert isinstance(config.trainer, LocalTrainerConfig)
    settings = RankSettings(
        trainer=config.trainer, routing=config.routing_replay,
        weights=write_tiny_model(tmp_path / "policy"), temperature=1.0, seed=0,
        merges_adapters=True, checkpoint=None, step=0, ranks=1,
    )  # fmt: skip
    first = make_trainer(settings)
    with torch.no_grad():
        for parameter in first.model.parameters():
            parameter.add_(1)
    saved = checkpoint.save(first, tmp_path / "checkpoints", step=1, state={})
    resumed = make_trainer(settings.model_copy(update={"checkpoint": saved.path, "step": 1}))
    pairs = list(zip(first.model.parameters(), resumed.model.parameters(), strict=True))
    assert pairs
    assert all(torch.equal(saved, restored) for saved, restored in pairs)


@pytest.mark.integration
def test_a_driver_whose_trainer_is_other_processes_imports_no_torch() -> None:
    modules = (
        "runners.campaigns.run, runners.campaigns.overlap.steps, runners.training.ranks.client"
    )
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
