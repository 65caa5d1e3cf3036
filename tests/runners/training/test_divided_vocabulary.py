"""Embedding and output layer whose rows are divided among processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from runners.training.divided_vocabulary import (
    DividedHead,
    DividedMatrix,
    divide_vocabulary,
    join_rows,
    take_rows,
)
from runners.training.peers import TrainingPeers
from runners.training.training_error import TrainingError
from tests.fakes.thread_peers import run_together

WIDTH = 4


def make_matrix(rows: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(0)))


def make_hidden(rank: int) -> Tensor:
    """Each process has other tokens, and another number of them."""
    return torch.randn(2 + rank, WIDTH, generator=torch.Generator().manual_seed(rank + 1))


class Vocabulary(nn.Module):
    """The two layers of a policy, as transformers gives them."""

    def __init__(self, embedding: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.embedding, self.head = embedding, head

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_input_embeddings(self, layer: nn.Module) -> None:
        self.embedding = layer

    def set_output_embeddings(self, layer: nn.Module) -> None:
        self.head = layer


def make_vocabulary(rows: int, *, tied: bool) -> Vocabulary:
    embedding, head = nn.Embedding(rows, WIDTH), nn.Linear(WIDTH, rows, bias=False)
    embedding.weight = make_matrix(rows)
    head.weight = embedding.weight if tied else nn.Parameter(make_matrix(rows).detach() * 2)
    return Vocabulary(embedding, head)


def compute_loss(policy: Vocabulary, rank: int, head: Any) -> Tensor:
    """Return the sum of some logits of a process's tokens."""
    ids = torch.arange(1 + rank) % 3
    hidden = policy.embedding(ids).float() + make_hidden(rank)[: len(ids)]
    loss: Tensor = (head(hidden) ** 2).sum()
    return loss


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 20), st.integers(1, 5), st.booleans())
def test_gradients_are_the_sums_of_whole_layers(rows: int, count: int, tied: bool) -> None:
    whole = make_vocabulary(rows, tied=tied)
    for rank in range(count):
        compute_loss(whole, rank, whole.head).backward()  # type: ignore[no-untyped-call]

    def train(peers: TrainingPeers) -> list[Tensor]:
        policy = make_vocabulary(rows, tied=tied)
        divide_vocabulary(policy, torch.float32, peers)
        head = policy.get_output_embeddings()
        assert isinstance(head, DividedHead)
        compute_loss(policy, peers.rank, head.gather()).backward()  # type: ignore[no-untyped-call]
        parts = list(policy.parameters())
        assert len(parts) == (1 if tied else 2)
        gradients = [each.grad for each in parts if each.grad is not None]
        return [join_rows(each, rows, peers) for each in gradients]

    for found in run_together(count, train):
        for one, other in zip(found, whole.parameters(), strict=True):
            torch.testing.assert_close(one, other.grad)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 20), st.integers(1, 6))
def test_rows_are_divided_as_torch_does_it_and_joined_again(rows: int, count: int) -> None:
    whole = make_matrix(rows).detach()

    def divide(peers: TrainingPeers) -> tuple[Tensor, Tensor]:
        part = take_rows(whole, peers)
        return part, join_rows(part, rows, peers)

    found = run_together(count, divide)
    chunks = whole.chunk(count)
    for (part, joined), chunk in zip(found, chunks, strict=False):
        assert torch.equal(part, chunk)
        assert torch.equal(joined, whole)
    assert all(len(part) == 0 for part, _ in found[len(chunks) :])


def test_a_rounded_matrix_has_an_unrounded_gradient() -> None:
    whole = make_matrix(5)
    slope = torch.full((5, WIDTH), 1 + 2.0**-20)

    def train(peers: TrainingPeers) -> tuple[Tensor, Tensor]:
        matrix = DividedMatrix(whole, torch.bfloat16, peers)
        gathered = matrix.gather(torch.float32)
        (gathered * slope).sum().backward()  # type: ignore[no-untyped-call]
        assert matrix.part.grad is not None
        return gathered.detach(), join_rows(matrix.part.grad, 5, peers)

    for gathered, gradient in run_together(2, train):
        assert torch.equal(gathered, whole.detach().bfloat16().float())
        assert torch.equal(gradient, 2 * slope)


def test_a_part_keeps_nothing_of_the_whole_in_memory() -> None:
    def measure(peers: TrainingPeers) -> int:
        part = DividedMatrix(make_matrix(8), torch.float32, peers).part
        return part.untyped_storage().nbytes()

    assert run_together(4, measure) == [2 * WIDTH * 4] * 4


@pytest.mark.parametrize("bias", [True, False])
def test_layers_of_other_kinds_are_refused(bias: bool) -> None:
    class Scaled(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:
            return F.embedding(input, self.weight) * 2

    embedding = nn.Embedding(5, WIDTH) if bias else Scaled(5, WIDTH)
    policy = Vocabulary(embedding, nn.Linear(WIDTH, 5, bias=bias))
    with pytest.raises(TrainingError, match=r"trainer\.shard=model.*set trainer\.shard=optimizer"):
        divide_vocabulary(policy, torch.float32, TrainingPeers())
