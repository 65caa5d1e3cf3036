"""A policy whose weights, gradients and moments are sharded over the processes that train together,
by torch's FSDP2 (Zhao et al. 2023, arXiv 2304.11277; ZeRO, Rajbhandari et al. 2020, arXiv
1910.02054).

Each process keeps its rows of every weight as a DTensor. With ``trainer.shard=model`` a decoder
layer is gathered while it computes, with ``optimizer`` the gathered weights stay until the update.
Invariant: every pass is an exchange between all processes, so all of them make the same number
(``equal_passes.py``).

Routers and the decays of linear attention stay whole on each process: they are small, and float32
also where a policy computes in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional as F

from conf.sections.training import TrainingPrecision
from runners.training.peers import TrainingPeers
from runners.training.policy import find_decoder, find_head
from runners.training.precision import stays_float32, widen_routers


class ShardedPolicy:
    """The float32 weights of one policy; changed by the optimizer, and by ``load_state_dict``. It
    stands in the place of ``MasterWeights``.

    All processes call ``add_gradients``, ``clip_gradients``, ``gather`` and ``run_pass`` together.
    """

    exchanges_in_passes = True
    """See ``MasterWeights``."""

    def __init__(self, policy: Any, precision: TrainingPrecision, *, keeps_whole: bool) -> None:
        """Take over a float32 policy on its device, of which this process keeps its rows.

        ``keeps_whole``: gathered weights stay until the update. The processes are the ranks of
        torch.distributed's default group.
        """
        self._policy = policy
        if precision == "bfloat16":
            widen_routers(policy)
        shard_policy(policy, precision, keeps_whole=keeps_whole)
        self.trained: dict[str, nn.Parameter] = {
            name: each for name, each in policy.named_parameters() if each.requires_grad
        }
        """By their names in the policy: DTensors, or whole parameters, float32."""

    def run_pass(self, policy: Any, compute: Callable[[], Tensor]) -> Tensor:
        """Return what a forward pass computes of a sharded policy."""
        result: Tensor = policy.run_pass(compute)
        return result

    def clear_gradients(self) -> None:
        """Forget the gradients of the last update."""
        for each in self.trained.values():
            each.grad = None

    def add_gradients(self, peers: TrainingPeers) -> None:
        """Add up the gradients of whole parameters; backward passes add up those of the others."""
        peers.add_gradients(e for e in self.trained.values() if not isinstance(e, DTensor))

    def clip_gradients(self, limit: float) -> float:
        """Scale the gradient to a norm of at most ``limit``; return the norm before."""
        # apart, since torch refuses lists of DTensors and tensors
        sharded = [each for each in self.trained.values() if isinstance(each, DTensor)]
        whole = [each for each in self.trained.values() if not isinstance(each, DTensor)]
        norms = [
            join_parts(nn.utils.get_total_norm([e.grad for e in part if e.grad is not None]))
            for part in (sharded, whole)
        ]
        norm = torch.stack(norms).norm()
        for part in (sharded, whole):
            device = part[0].device if part else norm.device
            nn.utils.clip_grads_with_norm_(part, limit, norm.to(device))
        return float(norm)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make an update, and forget the gathered weights from before it."""
        optimizer.step()
        for module in self._policy.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def gather(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each of the policy's tensors, and all of it on the CPU, one at a time."""
        for each in dict.fromkeys(self._policy.state_dict(keep_vars=True).values()):
            yield each, join_parts(each)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the policy's weights by name, on the CPU, float32 where they are trained."""
        whole = dict(self.gather())
        named: dict[str, Tensor] = self._policy.state_dict(keep_vars=True)
        return {name: whole[each] for name, each in named.items()}

    @torch.no_grad()
    def load_state_dict(self, weights: dict[str, Tensor]) -> None:
        """Set the parts to those of what ``state_dict`` returned; raises KeyError, RuntimeError."""
        for name, each in self.trained.items():
            each.copy_(take_part(weights[name], each))

    def make_head(self, policy: nn.Module) -> Callable[[Tensor], Tensor]:
        """See ``MasterWeights.make_head``; within ``run_pass``, which gathers its weights.

        In bfloat16 the gradient of a micro-batch is rounded once, like those of all layers.
        """
        head = find_head(policy)
        weight, bias = head.weight.float(), None if head.bias is None else head.bias.float()
        return lambda hidden: F.linear(hidden.float(), weight, bias)


def shard_policy(policy: Any, precision: TrainingPrecision, *, keeps_whole: bool) -> None:
    """Leave this process its rows of each weight of a policy, which computes as before, in a
    precision, within ``run_pass``; gradients of all processes are added up.
    """
    computed = torch.bfloat16 if precision == "bfloat16" else torch.float32
    whole = {
        each
        for name, each in policy.named_parameters()
        if stays_float32(policy, name) or not each.requires_grad
    }
    mesh = init_device_mesh(
        next(policy.parameters()).device.type, (torch.distributed.get_world_size(),)
    )
    # Inputs stay as they are: the mask of a tree is a float32 that nobody reads.
    mixed = MixedPrecisionPolicy(computed, torch.float32, cast_forward_inputs=False)
    # The policy itself has what is left, for as long as a pass: the output layer, whose calls are
    # chunks of logits, a number that differs between processes; and an embedding that is tied to it
    embedding = policy.get_input_embeddings()
    apart = [] if embedding.weight is find_head(policy).weight else [embedding]
    for module in (*find_decoder(policy).layers, *apart, policy):
        fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=not keeps_whole,
            mp_policy=mixed,
            ignored_params=whole,
        )
        module.set_reshard_after_backward(not keeps_whole)
        module.set_gradient_divide_factor(1.0)  # a sum: samples are weighted before they are dealt
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction
    # The trainer calls decoder and output layer apart; FSDP gathers around calls of one method.
    policy.run_pass = MethodType(lambda _, compute: compute(), policy)
    register_fsdp_forward_method(policy, "run_pass")


def join_parts(part: Tensor) -> Tensor:
    """Return a whole tensor on the CPU, of which each process may have a part; all of them call."""
    part = part.detach()
    return (part.full_tensor() if isinstance(part, DTensor) else part).cpu().contiguous()


def take_part(whole: Tensor, like: Tensor) -> Tensor:
    """Return this process's part of a whole tensor, divided like another, on its device."""
    whole = whole.to(like.device)
    if not isinstance(like, DTensor):
        return whole
    # src_data_rank=None: each process has all of it. A view would keep that in memory.
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None).clone()
