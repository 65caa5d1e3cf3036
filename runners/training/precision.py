"""Compute in bfloat16 and train float32 (mixed precision, Micikevicius et al. 2018, arXiv
1710.03740).

With ``trainer.precision=bfloat16`` the policy computes with bfloat16 copies of its weights, and the
optimizer changes float32 masters, to which every micro-batch's gradients are added in float32.
bfloat16 has 8 significant bits: an update of one part in a thousand would be lost in a copy, and
so would the gradient of a late micro-batch.

Copies, not autocast: a copy computes what an engine in bfloat16 computes, and code of transformers
that calculates in float32 on purpose (norms, rotary positions, the recurrence of linear attention)
stays as it is, where autocast would round its products; half of a layer's activations are kept in
two bytes instead of four. Float32 stay routers, whose choices rounding would change, the decays of
linear attention, low-rank adapters, and the output layer's product, whose weights are the rounded
ones, as an engine has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from conf.sections.training import TrainingPrecision
from runners.training.peers import TrainingPeers
from runners.training.policy import find_head

_FLOAT32_NAMES = ("A_log", "dt_bias")
"""Parameters of linear attention's decay: exp(−exp(A_log) · softplus(… + dt_bias)) per token."""


class MasterWeights:
    """The float32 parameters of one policy that the optimizer changes; made once, by the trainer.

    Invariant: outside of an optimizer's step each bfloat16 copy is its master, rounded.
    """

    exchanges_in_passes = False
    """True if forward and backward passes are exchanges between processes."""

    def __init__(self, policy: nn.Module, precision: TrainingPrecision) -> None:
        """Take over a float32 policy; with ``bfloat16`` its parameters become copies.

        Frozen parameters have no master. Gradients of copies are moved to the masters during the
        backward pass, parameter by parameter.
        """
        self._policy = policy
        self._masters: dict[Tensor, nn.Parameter] = {}
        """By copy."""
        if precision == "bfloat16":
            self._round(policy)
        self.trained: dict[str, nn.Parameter] = {
            name: self._masters.get(each, each)
            for name, each in policy.named_parameters()
            if each.requires_grad
        }
        """By their names in the policy: what the optimizer changes and checkpoints hold, float32.
        """

    def run_pass(self, _policy: nn.Module, compute: Callable[[], Tensor]) -> Tensor:
        """Return what a forward pass computes."""
        return compute()

    def clear_gradients(self) -> None:
        """Forget the gradients of the last update."""
        for each in self.trained.values():
            each.grad = None

    def add_gradients(self, peers: TrainingPeers) -> None:
        """Add up the gradients of all processes, after their backward passes."""
        peers.add_gradients(self.trained.values())

    def clip_gradients(self, limit: float) -> float:
        """Scale the gradient to a norm of at most ``limit``; return the norm before."""
        return nn.utils.clip_grad_norm_(self.trained.values(), limit).item()

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make an update, and round the masters into the policy's copies."""
        optimizer.step()
        for copy, master in self._masters.items():
            copy.copy_(master)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the policy's weights by name: masters where there are, float32."""
        weights: dict[str, Tensor] = self._policy.state_dict(keep_vars=True)
        return {name: self._masters.get(each, each).detach() for name, each in weights.items()}

    @torch.no_grad()
    def load_state_dict(self, weights: dict[str, Tensor]) -> None:
        """Set policy and masters to what ``state_dict`` returned; raises RuntimeError."""
        self._policy.load_state_dict(weights)
        for name, each in self._policy.named_parameters():
            if each in self._masters:
                self._masters[each].copy_(weights[name])

    def make_head(self, policy: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the output layer of this or another policy, for one micro-batch: from hidden
        states [n, H] to logits, float32 [n, V], computed in float32.
        """
        head = find_head(policy)
        if head.weight.dtype == torch.float32:
            return head
        weight = self._widen(head.weight)
        bias = None if head.bias is None else self._widen(head.bias)
        return lambda hidden: F.linear(hidden.float(), weight, bias)

    def _widen(self, copy: Tensor) -> Tensor:
        """Return a copy in float32, whose gradient goes to its master unrounded."""
        master = self._masters.get(copy)
        if master is None:
            return copy.float()
        return _Widened.apply(master, copy.detach())  # type: ignore[no-any-return, no-untyped-call]

    def _round(self, policy: nn.Module) -> None:
        for name, each in policy.named_parameters():
            if each.requires_grad and not stays_float32(policy, name):
                master = nn.Parameter(each.detach())
                self._masters[each] = master
                each.register_post_accumulate_grad_hook(_add_to(master))  # type: ignore[no-untyped-call]
        round_policy(policy)


def round_policy(policy: nn.Module) -> None:
    """Let a float32 policy compute in bfloat16, apart from what stays float32."""
    for name, each in policy.named_parameters():
        if not stays_float32(policy, name):
            each.data = each.data.bfloat16()
    widen_routers(policy)


def widen_routers(policy: nn.Module) -> None:
    """Let routers, which stay float32, take hidden states in bfloat16."""
    for module in policy.modules():
        if _is_router(module):
            module.register_forward_pre_hook(_widen_input)


def stays_float32(policy: nn.Module, name: str) -> bool:
    """Return whether a parameter is never rounded."""
    owner, _, last = name.rpartition(".")
    return last in _FLOAT32_NAMES or "lora_" in owner or _is_router(policy.get_submodule(owner))


def _is_router(module: nn.Module) -> bool:
    """Return whether a module is a router of transformers, which all have such a class name."""
    return type(module).__name__.endswith("Router")


def _widen_input(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.float() for each in inputs)


def _add_to(master: nn.Parameter) -> Callable[[Tensor], None]:
    def add(copy: Tensor) -> None:
        assert copy.grad is not None
        if master.grad is None:
            master.grad = copy.grad.float()
        else:
            master.grad.add_(copy.grad)
        copy.grad = None

    return add


class _Widened(torch.autograd.Function):
    """A rounded weight in float32; the gradient is its master's."""

    @staticmethod
    def forward(ctx: Any, master: Tensor, copy: Tensor) -> Tensor:
        return copy.float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
