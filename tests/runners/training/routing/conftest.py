"""A random tiny policy, and an engine whose routers differ from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.fakes.local_trainer import VOCAB, make_trainer
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny policy."""
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


@pytest.fixture(scope="module")
def noisy(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same policy with other router weights: an engine that chooses other experts."""
    directory = tmp_path_factory.mktemp("noisy")
    trainer = make_trainer(weights)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in trainer.model.named_parameters():
            if "gate.weight" in name:
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(0.1 * weight.std() * noise)
    trainer.model.save_pretrained(directory)  # type: ignore[operator]
    return directory
