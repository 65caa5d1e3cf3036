"""Divide master weights and AdamW's moments among the processes that train together (stage 1 of
ZeRO, Rajbhandari et al. 2020, arXiv 1910.02054).

Each process has the whole gradient of an update. It updates its part of every parameter, and the
parts are then gathered into the weights that all of them compute with. AdamW treats every number by
itself, so the result is bit for bit that of undivided weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from runners.training.peers import TrainingPeers

_ALIGNED = 16
"""Bytes: a piece of a buffer is viewed as numbers of its type, at a multiple of their size."""


@dataclass(frozen=True, slots=True)
class _Divided:
    """A parameter of which this process updates a part."""

    whole: nn.Parameter
    """Has the gradient, float32 of the parameter's shape."""
    computed: Tensor
    """Weights that the policy computes with: ``whole``, or a copy in bfloat16."""
    own: nn.Parameter
    """The part, float32 [n]; of a matrix [1, n], since matrices alone decay."""


class WeightShards:
    """The parts of one process; changed by the optimizer, and by ``load``.

    ``publish`` and ``gather`` are calls that all processes make together, and raise
    PeersLostError.
    """

    def __init__(
        self,
        trained: Mapping[str, nn.Parameter],
        copies: Mapping[nn.Parameter, Tensor],
        peers: TrainingPeers,
    ) -> None:
        """Divide float32 parameters. Those of which the policy has ``copies`` give up their memory:
        their shape stays, for the gradients.
        """
        self._peers = peers
        self._divided = {
            name: self._divide(whole, copies.get(whole)) for name, whole in trained.items()
        }

    @property
    def parts(self) -> dict[str, nn.Parameter]:
        """The parts of this process, by the names of the parameters."""
        return {name: each.own for name, each in self._divided.items()}

    def take(self, whole: Tensor) -> Tensor:
        """Return this process's part of a tensor of a parameter's shape, a view of it."""
        part = whole.reshape(-1)[self._bounds(whole.numel(), self._peers.rank)]
        return part.view(1, -1) if whole.dim() > 1 else part

    def share_gradients(self) -> None:
        """Let the parts have their gradients, which are views."""
        for each in self._divided.values():
            gradient = each.whole.grad
            each.own.grad = None if gradient is None else self.take(gradient)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Set the parts to those of whole weights."""
        for name, each in self._divided.items():
            each.own.copy_(self.take(weights[name]))

    @torch.no_grad()
    def publish(self) -> None:
        """Gather the parts into the weights that the policy computes with, rounded as these are."""
        bucket: list[_Divided] = []
        for each in self._divided.values():
            numbers = sum(other.whole.numel() for other in (*bucket, each))
            if bucket and numbers > self._peers.bucket:
                self._publish(bucket)
                bucket = []
            bucket.append(each)
        self._publish(bucket)

    @torch.no_grad()
    def gather(self, name: str, part: Tensor) -> Tensor:
        """Return the whole tensor of a parameter's shape, on the CPU, of which each process has a
        ``part``: the master weights, or a moment.
        """
        shape = self._divided[name].whole.shape
        own = torch.zeros(self._longest(shape.numel()), dtype=part.dtype, device=part.device)
        own[: part.numel()] = part.flatten()
        found = [
            piece[: _length(self._bounds(shape.numel(), rank))]
            for rank, piece in enumerate(self._peers.gather(own))
        ]
        return torch.cat(found).cpu().view(shape)

    def _divide(self, whole: nn.Parameter, copy: Tensor | None) -> _Divided:
        computed = whole if copy is None else copy
        computed.data = computed.data.contiguous()  # its parts are written through a flat view
        part = self.take(whole.detach())
        if copy is None:
            return _Divided(whole, whole, nn.Parameter(part))
        own = nn.Parameter(part.clone())
        whole.data = whole.new_zeros(1).expand(whole.shape)
        return _Divided(whole, copy, own)

    def _publish(self, bucket: Sequence[_Divided]) -> None:
        """Exchange the parts of some parameters in one call, as bytes: they differ in type."""
        lengths = [
            -(-self._longest(each.whole.numel()) * each.computed.element_size() // _ALIGNED)
            * _ALIGNED
            for each in bucket
        ]
        device = bucket[0].own.device
        packed = torch.zeros(sum(lengths), dtype=torch.uint8, device=device)
        for each, place in zip(bucket, torch.split(packed, lengths), strict=True):
            part = each.own.flatten().to(each.computed.dtype).view(torch.uint8)
            place[: len(part)] = part
        for rank, received in enumerate(self._peers.gather(packed)):
            for each, piece in zip(bucket, torch.split(received, lengths), strict=True):
                flat = each.computed.detach().view(-1)
                part = flat[self._bounds(flat.numel(), rank)]
                part.copy_(piece.view(flat.dtype)[: len(part)])

    def _bounds(self, numbers: int, rank: int) -> slice:
        count = self._peers.count
        return slice(numbers * rank // count, numbers * (rank + 1) // count)

    def _longest(self, numbers: int) -> int:
        """Return the length of the longest part."""
        return -(-numbers // self._peers.count)


def _length(bounds: slice) -> int:
    length: int = bounds.stop - bounds.start
    return length
