"""Two ranks on CPUs (gloo) train what one process trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.fakes.local_trainer import VOCAB, make_trainer
from tests.fakes.tiny_model import write_tiny_model
from tests.fakes.training_ranks import NOISY, POLICY, SCENARIOS, run_scenario

pytest.importorskip("peft", reason="pip install 'agentrl[lora]'")
pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
RANKS = 2
OWN = ("time/train_s",)
"""Metrics that are a process's own."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the results of all scenarios on two ranks."""
    directory = tmp_path_factory.mktemp("ranks")
    write_tiny_model(directory / POLICY, vocab_size=VOCAB)
    trainer = make_trainer(directory / POLICY)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in trainer.model.named_parameters():
            if "gate.weight" in name:
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(0.1 * weight.std() * noise)
    trainer.model.save_pretrained(directory / NOISY)  # type: ignore[operator]
    program = [sys.executable, "-m", "tests.fakes.training_ranks"]
    ranks = [
        subprocess.Popen([*program, str(rank), str(RANKS), str(directory)], cwd=ROOT)
        for rank in range(RANKS)
    ]
    try:
        codes = [rank.wait(timeout=500) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0] * RANKS
    return directory


@pytest.mark.parametrize("name", SCENARIOS)
def test_ranks_train_what_one_process_trains(name: str, trained: Path) -> None:
    steps, weights = run_scenario(SCENARIOS[name], trained, None)
    for rank in range(RANKS):
        found = load_file(trained / f"{rank} {name}.safetensors")
        assert found.keys() == weights.keys()
        differences = [(found[key] - value).abs().flatten() for key, value in weights.items()]
        difference = torch.cat(differences)
        exact = not SCENARIOS[name].rounded
        if exact and steps[-1]["train/updates"] == 1.0 and len(steps) == 1:
            assert difference.max() < 1e-6
        # AdamW divides by the gradient's own size: after several updates the rounding of gradients
        # near 0 shows in single weights.
        assert difference.max() < (2e-5 if exact else 1e-3)
        assert (difference > 1e-6).float().mean() < (1e-4 if exact else 0.2)
        reported = json.loads((trained / f"{rank} {name}.json").read_text())
        for one, other in zip(steps, reported, strict=True):
            assert one.keys() == other.keys()
            for key in one.keys() - set(OWN):
                number = isinstance(one[key], float)
                near = 1e-6 if exact else 1e-2
                expected = pytest.approx(one[key], rel=1e-3, abs=near) if number else one[key]
                assert other[key] == expected, (rank, key)
    if SCENARIOS[name].masked:
        assert list(steps[0]["refused"]) == ["r2"]
    moved = [(value - start).abs().max() for value, start in _pairs(trained, weights)]
    assert max(moved) > 1e-4, "something was trained"


def test_the_ranks_are_the_same_bit_for_bit(trained: Path) -> None:
    for name in SCENARIOS:
        first, second = (load_file(trained / f"{rank} {name}.safetensors") for rank in range(2))
        assert all(torch.equal(value, second[key]) for key, value in first.items()), name


def test_divided_weights_are_trained_like_whole_ones_bit_for_bit(trained: Path) -> None:
    divided = [name for name in SCENARIOS if name.endswith(", divided")]
    assert divided
    for name in divided:
        one, other = (
            load_file(trained / f"0 {each}.safetensors")
            for each in (name, name.removesuffix(", divided"))
        )
        assert all(torch.equal(value, other[key]) for key, value in one.items()), name


def _pairs(
    directory: Path, weights: dict[str, torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    start = make_trainer(directory / POLICY).model.state_dict()
    return [
        (value, start[name] if name in start else torch.zeros_like(value))
        for name, value in weights.items()
    ]
