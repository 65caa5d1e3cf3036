"""Embedding and output layer whose rows are divided among processes.

All rows exist while a micro-batch is embedded, or its logits are computed. This is not left to
torch's FSDP, which gathers and frees with each call of a module: the output layer is called once
per chunk of tokens, a number that differs between processes, and may be the embedding, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runners.training.peers import TrainingPeers
from runners.training.policy import find_head
from runners.training.training_error import TrainingError


class DividedMatrix:
    """A matrix of which each process has as many rows as any other; the last ones fewer or none."""

    def __init__(self, whole: nn.Parameter, computed: torch.dtype, peers: TrainingPeers) -> None:
        """Keep this process's rows; ``computed``: the type to which they are rounded for use."""
        self.rows = len(whole)
        self._computed, self._peers = computed, peers
        own = take_rows(whole.detach(), peers).clone()
        self.part = nn.Parameter(own, requires_grad=whole.requires_grad)

    def gather(self, wanted: torch.dtype) -> Tensor:
        """Return all rows, rounded, as numbers of a type; all processes do so together, also in the
        backward pass, which adds up their gradients. Raises PeersLostError.
        """
        found: Tensor = _Gathered.apply(self.part, self, wanted)  # type: ignore[no-untyped-call]
        return found

    def join(self, part: Tensor, wanted: torch.dtype) -> Tensor:
        """Return all rows of which each process has a part."""
        return join_rows(part.to(self._computed), self.rows, self._peers).to(wanted)

    def add(self, gradient: Tensor) -> Tensor:
        """Return this process's rows of the sum of gradients, in the type of ``part``."""
        most = -(-self.rows // self._peers.count) * self._peers.count
        gradient = gradient.to(self.part.dtype)
        if most > self.rows:
            gradient = F.pad(gradient, (0, 0, 0, most - self.rows))
        return self._peers.add_rows(gradient.contiguous())[: len(self.part)]


class DividedEmbedding(nn.Module):
    """An embedding in place of one of transformers."""

    def __init__(self, matrix: DividedMatrix, like: nn.Embedding, computed: torch.dtype) -> None:
        super().__init__()
        self.weight = matrix.part
        self._matrix, self._computed, self._padding = matrix, computed, like.padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of token ids, in the type that the policy computes with."""
        return F.embedding(ids, self._matrix.gather(self._computed), self._padding)


class DividedHead(nn.Module):
    """An output layer in place of one of transformers."""

    def __init__(self, matrix: DividedMatrix) -> None:
        super().__init__()
        self.weight = matrix.part
        self._matrix = matrix

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states, float32."""
        return self.gather()(hidden)

    def gather(self) -> Callable[[Tensor], Tensor]:
        """Return the output layer of one micro-batch: from hidden states [n, H] to logits, float32
        [n, V], computed in float32.
        """
        weight = self._matrix.gather(torch.float32)
        return lambda hidden: F.linear(hidden.float(), weight)


def divide_vocabulary(policy: Any, computed: torch.dtype, peers: TrainingPeers) -> None:
    """Put a divided embedding and output layer, one matrix where they are, into a policy.

    ``computed``: the type that it computes with. Raises TrainingError for layers of other kinds.
    """
    embedding, head = policy.get_input_embeddings(), find_head(policy)
    if type(embedding) is not nn.Embedding or type(head) is not nn.Linear or head.bias is not None:
        raise TrainingError(
            f"trainer.shard=model does not divide the {type(embedding).__name__} and "
            f"{type(head).__name__} of this policy: set trainer.shard=optimizer"
        )
    matrix = DividedMatrix(embedding.weight, computed, peers)
    tied = head.weight is embedding.weight
    of_head = matrix if tied else DividedMatrix(head.weight, computed, peers)
    policy.set_input_embeddings(DividedEmbedding(matrix, embedding, computed))
    policy.set_output_embeddings(DividedHead(of_head))


def take_rows(whole: Tensor, peers: TrainingPeers) -> Tensor:
    """Return the rows that are this process's, a view: those of FSDP, and of torch.chunk."""
    each = -(-len(whole) // peers.count)
    return whole[each * peers.rank : each * (peers.rank + 1)]


def join_rows(part: Tensor, rows: int, peers: TrainingPeers) -> Tensor:
    """Return all rows of which ``take_rows`` gave each process its own."""
    each = -(-rows // peers.count)
    if len(part) < each:  # an exchange is of as many rows from each
        part = torch.cat([part, part.new_zeros(each - len(part), *part.shape[1:])])
    return peers.join_rows(part.contiguous())[:rows]


class _Gathered(torch.autograd.Function):
    """All rows of a divided matrix; the gradient of a part is that of all processes, unrounded."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, matrix: DividedMatrix, wanted: torch.dtype) -> Tensor:
        ctx.matrix = matrix
        return matrix.join(part, wanted)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.matrix.add(gradients[0]), None, None
