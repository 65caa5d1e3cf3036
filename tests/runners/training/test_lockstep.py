"""Processes make the same number of passes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.training.lockstep import keep_pace, make_idle_batch
from runners.training.peers import PeersLostError, TrainingPeers, find_lost_peers
from tests.fakes.thread_peers import run_together


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_every_process_makes_as_many_passes_as_the_one_with_most(counts: list[int]) -> None:
    batch = make_idle_batch(torch.device("cpu"))

    def run(peers: TrainingPeers) -> str:
        passes: list[str] = []
        own = iter([batch] * counts[peers.rank])
        for _ in keep_pace(own, peers, lambda: passes.append("idle ")):
            passes.append("own ")
        return "".join(passes)

    for count, passes in zip(counts, run_together(len(counts), run), strict=True):
        assert passes == "own " * count + "idle " * (max(counts) - count)


def test_an_idle_batch_trains_a_token() -> None:
    batch = make_idle_batch(torch.device("cpu"))
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
