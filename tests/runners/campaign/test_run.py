"""The parts of a campaign that are made before its first step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from conf.compose import compose
from runners.campaign.run import _make_trainer
from runners.runtime.policy import Policy
from runners.training import checkpoint
from tests.fakes.tiny_model import write_tiny_model


def test_a_resumed_campaign_trains_the_weights_of_its_checkpoint(tmp_path: Path) -> None:
    config = compose([])
    policy = Policy(weights=write_tiny_model(tmp_path / "policy"), tokenizer=tmp_path)
    first = _make_trainer(config, policy, None)
    with torch.no_grad():
        for parameter in first.model.parameters():
            parameter.add_(1)
    checkpoint.save(first, tmp_path / "checkpoints", step=1, state={}, keep=1)
    resumed = _make_trainer(config, policy, checkpoint.find_latest(tmp_path / "checkpoints"))
    pairs = list(zip(first.model.parameters(), resumed.model.parameters(), strict=True))
    assert pairs
    assert all(torch.equal(saved, restored) for saved, restored in pairs)


def test_a_driver_whose_trainer_is_other_processes_imports_no_torch() -> None:
    modules = "runners.campaign.run, runners.campaign.overlap.steps, runners.trainer_ranks.client"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
