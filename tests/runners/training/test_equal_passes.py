"""Processes make the same number of passes."""

from __future__ import annotations

import pytest
import torch

from runners.training.equal_passes import equalize_passes, make_placeholder
from runners.training.peers import PeersLostError, TrainingPeers, find_lost_peers


class Peers(TrainingPeers):
    """One process among others, the busiest of which makes ``most`` passes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def any(self, flag: bool) -> bool:
        self._left -= 1
        return flag or self._left >= 0


@pytest.mark.parametrize(("own", "most"), [(0, 0), (0, 2), (2, 2), (1, 4)])
def test_every_process_makes_as_many_passes_as_the_one_with_most(own: int, most: int) -> None:
    passes: list[str] = []
    batches = iter([make_placeholder(torch.device("cpu"))] * own)
    for _ in equalize_passes(batches, Peers(most), lambda: passes.append("placeholder")):
        passes.append("own")
    assert passes == ["own"] * own + ["placeholder"] * (most - own)


def test_a_placeholder_trains_a_token() -> None:
    batch = make_placeholder(torch.device("cpu"))
    assert batch.input_ids.shape == (1, 2)
    assert len(batch.targets) == 1
    assert float(batch.weights.sum()) == 0.0
    assert batch.tree is None


def test_a_failed_exchange_of_a_pass_is_told_from_other_errors() -> None:
    gloo = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"
    for error in (RuntimeError(gloo), torch.distributed.DistBackendError("NCCL error")):
        with pytest.raises(PeersLostError, match="cannot exchange"), find_lost_peers():
            raise error
    with pytest.raises(RuntimeError, match="shapes"), find_lost_peers():
        raise RuntimeError("shapes do not match")
