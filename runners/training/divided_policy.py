"""Divide a policy's weights, gradients and moments among the processes that train together: stage 3
of ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054) by torch's FSDP (Zhao et al. 2023, arXiv
2304.11277).

A decoder layer is whole while it computes, in the forward pass and again in the backward pass, from
which each process keeps its part of the sum of the gradients. Invariant: every pass is an exchange
between all processes, so all of them make the same number (``lockstep.py``).

Routers and the decays of linear attention stay whole on each process: they are small, and float32
also where a policy computes in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from conf.sections.training import TrainingPrecision
from runners.training.divided_vocabulary import (
    divide_vocabulary,
    join_rows,
    take_rows,
)
from runners.training.peers import TrainingPeers
from runners.training.policy import find_decoder, find_head
from runners.training.precision import stays_float32, widen_routers


class DividedPolicy:
    """The float32 weights of one policy, of which this process has a part; changed by the
    optimizer, and by ``load_state_dict``. It stands in the place of ``MasterWeights``.

    All processes call ``add_gradients``, ``clip_gradients`` and what gathers together.
    """

    is_divided = exchanges_in_passes = True
    """See ``MasterWeights``."""

    def __init__(self, policy: Any, precision: TrainingPrecision, peers: TrainingPeers) -> None:
        """Take over a float32 policy on its device, of which parts are left.

        ``peers``: the ranks of torch.distributed's default group. Raises TrainingError.
        """
        self._policy, self._peers = policy, peers
        self._rows = {
            name: len(each) for name, each in policy.named_parameters() if each.requires_grad
        }
        if precision == "bfloat16":
            widen_routers(policy)
        divide_policy(policy, precision, peers)
        vocabulary = {policy.get_input_embeddings().weight, find_head(policy).weight}
        self._sharded: dict[str, DTensor] = {}
        self._whole: dict[str, nn.Parameter] = {}
        self.optimized: dict[str, nn.Parameter] = {}
        """This process's parts by the names of the parameters, float32."""
        for name, each in policy.named_parameters():
            if not each.requires_grad:
                continue
            if isinstance(each, DTensor):
                self._sharded[name] = each
                each = nn.Parameter(each.to_local().detach())
            elif each not in vocabulary:
                self._whole[name] = each
            self.optimized[name] = each
        self.trained = self.optimized

    def clear_gradients(self) -> None:
        """Forget the gradients of the last update."""
        for each in (*self._sharded.values(), *self.optimized.values()):
            each.grad = None

    def add_gradients(self, peers: TrainingPeers) -> None:
        """Let the parts have the sums of the gradients over all processes, after their backward
        passes, which added up most of them.
        """
        peers.add_gradients(self._whole.values())
        for name, each in self._sharded.items():
            gradient: Any = each.grad
            self.optimized[name].grad = None if gradient is None else gradient.to_local()

    def clip_gradients(self, limit: float) -> float:
        """Scale the gradient to a norm of at most ``limit``; return the norm before."""
        parts = [each for name, each in self.optimized.items() if name not in self._whole]
        [squares] = self._peers.add([_find_norm(parts) ** 2])
        norm = math.sqrt(squares + _find_norm(self._whole.values()) ** 2)
        every = list(self.optimized.values())
        nn.utils.clip_grads_with_norm_(every, limit, torch.tensor(norm, device=every[0].device))
        return norm

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make an update; ``optimizer``: of ``optimized``."""
        optimizer.step()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the policy's weights by name, on the CPU, float32 where they are trained."""
        weights: dict[str, Tensor] = self._policy.state_dict()
        masters = dict(self.gather_masters())
        names = {each: name for name, each in self._policy.named_parameters()}
        for name, each in self._policy.named_parameters(remove_duplicate=False):
            if each.requires_grad:
                weights[name] = masters[names[each]]
        return weights

    def gather_masters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the names of all trained weights and the weights, whole and on the CPU, one at a
        time.
        """
        for name, part in self.optimized.items():
            yield name, self.gather(name, part)

    def gather(self, name: str, part: Tensor) -> Tensor:
        """Return a tensor of a parameter's shape on the CPU, of which each process has a part: the
        weights, or a moment.
        """
        part = part.detach()
        whole = part if name in self._whole else join_rows(part, self._rows[name], self._peers)
        return whole.cpu().contiguous()

    def take(self, name: str, whole: Tensor) -> Tensor:
        """Return this process's part of a tensor of a parameter's shape."""
        # a view would keep all of it in memory
        return whole if name in self._whole else take_rows(whole, self._peers).clone()

    @torch.no_grad()
    def load_state_dict(self, weights: dict[str, Tensor]) -> None:
        """Set the parts to those of what ``state_dict`` returned; raises KeyError, RuntimeError."""
        for name, part in self.optimized.items():
            part.copy_(self.take(name, weights[name]))

    def make_head(self, policy: nn.Module) -> Callable[[Tensor], Tensor]:
        """See ``MasterWeights.make_head``; ``policy``: one that is divided."""
        head: Any = find_head(policy)
        found: Callable[[Tensor], Tensor] = head.gather()
        return found


def divide_policy(policy: Any, precision: TrainingPrecision, peers: TrainingPeers) -> None:
    """Leave this process its part of each weight of a policy, which computes as before, in a
    precision; gradients of all processes are added up. Raises TrainingError.
    """
    computed = torch.bfloat16 if precision == "bfloat16" else torch.float32
    whole = {each for name, each in policy.named_parameters() if stays_float32(policy, name)}
    divide_vocabulary(policy, computed, peers)
    whole |= {policy.get_input_embeddings().weight, find_head(policy).weight}
    decoder = find_decoder(policy)
    mesh = init_device_mesh(next(decoder.parameters()).device.type, (peers.count,))
    # Inputs stay as they are: the mask of a tree is a float32 that nobody reads.
    mixed = MixedPrecisionPolicy(computed, torch.float32, cast_forward_inputs=False)
    for module in (*decoder.layers, decoder):  # the decoder has what is left: its last norm
        fully_shard(
            module, mesh=mesh, reshard_after_forward=True, mp_policy=mixed, ignored_params=whole
        )
        module.set_gradient_divide_factor(1.0)  # a sum: samples are weighted before they are dealt
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction


def _find_norm(parameters: Iterable[nn.Parameter]) -> float:
    gradients = [each.grad for each in parameters if each.grad is not None]
    return nn.utils.get_total_norm(gradients).item()
