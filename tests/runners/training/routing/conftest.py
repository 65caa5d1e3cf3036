"""A random tiny policy, and an engine whose routers differ from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.local_trainer import VOCAB
from tests.fakes.routing_replay import write_noisy_routers
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny policy."""
    return write_tiny_model(tmp_path_factory.mktemp("policy"), vocab_size=VOCAB)


@pytest.fixture(scope="module")
def noisy(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same policy with other router weights: an engine that chooses other experts."""
    directory = tmp_path_factory.mktemp("noisy")
    write_noisy_routers(weights, directory)
    return directory
