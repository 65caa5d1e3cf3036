"""Routing replay: make the router modules of a policy choose given experts.

The experts are given; their weights are computed from the training router's own logits, so its
gradient flows through them (R3: Ma et al. 2025, arXiv 2510.11370). Tokens without given experts are
routed by the router itself. State lives for one micro-batch, forward and backward, recomputed
activations included, and is gone on every exit. Invariant: every router fires exactly once per
forward call; each call counts them, and any other number is a RoutingError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from runners.records.routing import RoutingError
from runners.training.policy import find_decoder

RouterOutput = tuple[Tensor, Tensor, Tensor]
"""Logits float [N, E], weights float [N, K] and experts int64 [N, K], for N rows."""


def _softmax_weights(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """Return Qwen3-MoE's weights [N, K]: ``softmax(logits)`` at the chosen experts, divided by
    their sum if ``norm_topk_prob``.
    """
    weights = logits.softmax(dim=-1, dtype=torch.float).gather(1, experts)
    if getattr(router, "norm_topk_prob", True):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights.to(logits.dtype)


def _sigmoid_weights(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """Return GLM-4-MoE's weights [N, K]: ``sigmoid(logits)`` at the chosen experts, normalised if
    configured, times ``routed_scaling_factor``. Its correction bias takes part in the choice only.
    """
    weights = logits.sigmoid().gather(1, experts)
    if router.norm_topk_prob:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    scaled: Tensor = weights * router.routed_scaling_factor
    return scaled


WEIGHTS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "Qwen3MoeTopKRouter": _softmax_weights,
    "Qwen3NextTopKRouter": _softmax_weights,
    "Qwen3_5MoeTopKRouter": _softmax_weights,
    "Glm4MoeTopkRouter": _sigmoid_weights,
    "Glm4MoeLiteTopkRouter": _sigmoid_weights,
}
"""The rule by which a router of transformers weighs experts, by the name of its class."""


@dataclass(slots=True)
class ReplayCounts:
    """Counts of one micro-batch; written by the hooks."""

    calls: int = 0
    """Forward calls of the decoder."""
    forward: Counter[int] = field(default_factory=Counter)
    """Calls of each layer's router in them."""
    recomputed: Counter[int] = field(default_factory=Counter)
    """Calls of each layer's router that recompute activations for the backward pass."""
    replayed: int = 0
    """Rows whose experts were replayed, counted per layer and call."""
    slots: int = 0
    """Replayed choices: rows · K."""
    other_slots: int = 0
    """Replayed choices that the training router would not have made."""
    rows: list[Tensor] = field(default_factory=list)
    """Per call, uint8 [N, routed layers]: replayed choices of each row that the training router
    would not have made, 0 to K; known as soon as the call has ended.
    """


@dataclass(slots=True)
class _Call:
    """One forward call of the decoder: the experts of its rows."""

    experts: Tensor | None
    """Integers [N, L, K]; None: record."""
    valid: Tensor
    """bool [N]"""
    other: dict[int, Tensor] = field(default_factory=dict)
    """Layer → uint8 [N], as in ``ReplayCounts.rows``."""
    recorded: dict[int, Tensor] = field(default_factory=dict)


class RouterReplay:
    """The routers of one policy, with hooks that do nothing outside ``micro_batch``."""

    def __init__(self, policy: nn.Module) -> None:
        """Add a hook to every router; raises RoutingError if there is none or an unknown one."""
        decoder = find_decoder(policy)
        self.routers: dict[int, nn.Module] = {}
        """Router by decoder layer."""
        for index, layer in enumerate(decoder.layers):
            gate = getattr(layer.mlp, "gate", None)
            if gate is not None and not isinstance(gate, nn.Linear):
                self._add_router(index, gate)
        if not self.routers:
            raise RoutingError(
                f"{type(policy).__name__} has no router: set routing_replay=off for a dense policy"
            )
        self.layers = len(decoder.layers)
        self._fired: ReplayCounts | None = None
        self._call: _Call | None = None
        self._recomputes = False
        self._calls: list[_Call] = []
        self._hooks = [
            router.register_forward_hook(self._hook(layer))
            for layer, router in self.routers.items()
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    @contextmanager
    def micro_batch(self) -> Iterator[ReplayCounts]:
        """Replay inside this context, which encloses forward and backward; yield its counts.

        Raises RoutingError if a router fired too often or not at all.
        """
        if self._fired is not None:
            raise RoutingError("a micro-batch is replayed inside another")
        self._fired = fired = ReplayCounts()
        try:
            yield fired
            self._check(fired)
        finally:
            self._fired, self._call, self._calls = None, None, []

    @contextmanager
    def forward(self, experts: Tensor | None, valid: Tensor) -> Iterator[dict[int, Tensor]]:
        """Enclose one forward call of the decoder, on N = B · T rows in the order of its flat
        input.

        ``experts``: integers [N, layers, K] to replay; None: the routers choose freely, and their
        choices are in the dictionary yielded, layer → int64 [N, K]. ``valid``: bool [N], the rows
        whose experts are known.
        """
        if self._fired is None:
            raise RoutingError("a forward call outside of a micro-batch")
        self._call = call = _Call(experts, valid)
        self._calls.append(call)
        self._fired.calls += 1
        try:
            yield call.recorded
            self._count(call)
        finally:
            self._call = None

    def recomputation(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of a layer's forward pass and of computing it again, for
        ``torch.utils.checkpoint``: its router chooses the same experts in both.
        """
        return nullcontext(), self._resume(self._call)

    @contextmanager
    def _resume(self, call: _Call | None) -> Iterator[None]:
        before = self._call, self._recomputes
        self._call, self._recomputes = call, True
        try:
            yield
        finally:
            self._call, self._recomputes = before

    def _add_router(self, layer: int, gate: nn.Module) -> None:
        name = type(gate).__name__
        if name not in WEIGHTS:
            raise RoutingError(
                f"layer {layer} routes with {name}, whose rule of weights is unknown here: "
                f"set routing_replay=off (known: {', '.join(WEIGHTS)})"
            )
        self._require_choice(layer, gate)
        self.routers[layer] = gate

    @torch.no_grad()
    def _require_choice(self, layer: int, gate: Any) -> None:
        """Raise RoutingError for a router that leaves the choice to its layer: GLM-4-MoE's did so
        in transformers 5.12.
        """
        found = gate(gate.weight.new_zeros(1, gate.weight.shape[-1]))
        if not isinstance(found, tuple) or len(found) != 3:
            raise RoutingError(
                f"layer {layer}'s {type(gate).__name__} gives no experts in this version of "
                "transformers: install transformers>=5.17, or set routing_replay=off"
            )

    def _hook(self, layer: int) -> Callable[[nn.Module, Any, RouterOutput], RouterOutput | None]:
        def hook(router: nn.Module, _: Any, output: RouterOutput) -> RouterOutput | None:
            if self._fired is None:
                return None
            logits, _, native = output
            call, again = self._call, self._recomputes
            if call is None:
                raise RoutingError(f"layer {layer} routes {len(native)} rows outside of a call")
            (self._fired.recomputed if again else self._fired.forward)[layer] += 1
            if len(call.valid) != len(native):
                raise RoutingError(
                    f"layer {layer} routes {len(native)} rows, and {len(call.valid)} were given"
                )
            if call.experts is None:
                call.recorded[layer] = native.detach()
                return None
            given = call.experts[:, layer].to(native.dtype)
            experts = torch.where(call.valid[:, None], given, native)
            if not again:
                self._compare(layer, call, experts, native)
            return logits, WEIGHTS[type(router).__name__](router, logits, experts), experts

        return hook

    @staticmethod
    def _compare(layer: int, call: _Call, experts: Tensor, native: Tensor) -> None:
        with torch.no_grad():
            own = (experts[:, :, None] == native[:, None, :]).any(dim=-1)
            call.other[layer] = ((~own).sum(dim=1) * call.valid).to(torch.uint8)

    def _count(self, call: _Call) -> None:
        """Sum a call's comparisons, at its end: each sum waits for the device."""
        if self._fired is None or call.experts is None or len(call.other) < len(self.routers):
            return  # ``_check`` names a router that did not fire
        rows = torch.stack([call.other[layer] for layer in self.routers], dim=1)
        replayed = int(call.valid.sum()) * len(self.routers)
        self._fired.rows.append(rows)
        self._fired.replayed += replayed
        self._fired.slots += replayed * call.experts.shape[-1]
        self._fired.other_slots += int(rows.sum())

    def _check(self, fired: ReplayCounts) -> None:
        for layer in self.routers:
            seen = fired.forward[layer]
            if seen != fired.calls:
                raise RoutingError(
                    f"layer {layer}'s router fired {seen} times in {fired.calls} forward calls: "
                    "its routing was not replayed (is a fused router or a compiled graph in the "
                    "way, or are the hooks set twice?)"
                )
            again = fired.recomputed[layer]
            if again not in (0, fired.calls):
                raise RoutingError(
                    f"layer {layer}'s router was recomputed {again} times after {fired.calls} calls"
                )
