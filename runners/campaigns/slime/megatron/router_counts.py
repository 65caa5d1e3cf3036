"""Count, layer by layer, the replayed choices that training's own routers would not make.

A router that replays has computed its scores anyway: its own choice is one more top-k of them.
slime pads a micro-batch with invented rows, and cuts and joins the others for its parallel ranks;
which rows are tokens is found by sending marks through slime's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

COUNTS = ("tokens", "choices", "other", "faults")
"""Per layer: replayed tokens, their choices, those that training would not make, and processes in
which the router did not run as often as there were micro-batches.
"""
_TOKEN = -1
"""Mark of a row that is a token; slime's padding has none below 0."""


@dataclass(slots=True)
class _Router:
    """One router of this process."""

    module: Any
    passes: int = 0
    """Replayed forward passes of this step."""
    tokens: int = 0
    other: Tensor | None = None
    """int64 []"""
    top_k: int = 0


@dataclass(slots=True)
class RouterCounts:
    """Counts of one process; wraps slime's functions by ``watch``."""

    layers: int
    """Of the model."""
    _routers: dict[int, _Router] = field(default_factory=dict)
    """By the id of slime's ``RoutingReplay`` object, which lives as long as its router."""
    _rows: list[Tensor] = field(default_factory=list)
    """By micro-batch: bool [rows], which are tokens."""
    _tokens: list[int] = field(default_factory=list)

    def watch(self, replay: ModuleType, actor: ModuleType) -> None:
        """Wrap the functions of ``slime.utils.routing_replay`` that Megatron's routers import, and
        the one that lays out a micro-batch's routing.
        """
        patch: Any = replay  # their types are slime's
        patch.register_routing_replay = self._watch_routers(patch.register_routing_replay)
        choose = patch.get_routing_replay_compute_topk
        patch.get_routing_replay_compute_topk = self._watch_choices(choose, patch)
        layout: Any = actor
        layout.prepare_routed_experts_for_routing_replay = self._watch_layout(
            layout.prepare_routed_experts_for_routing_replay
        )

    def take(self) -> NDArray[np.float64]:
        """Return the counts, float64 [layers · len(COUNTS)], and begin anew."""
        found = np.zeros((self.layers, len(COUNTS)))
        due = len(self._rows)
        for router in self._routers.values():
            # Megatron numbers layers from 1, over all stages of the pipeline.
            row = found[int(router.module.layer_number) - 1]
            other = 0 if router.other is None else int(router.other)
            late = due > 0 and (router.passes == 0 or router.passes % due != 0)
            row += (router.tokens, router.tokens * router.top_k, other, late)
            router.passes, router.tokens, router.other = 0, 0, None
        self._rows.clear()
        self._tokens.clear()
        return found.ravel()

    def _watch_routers(self, register: Callable[[Any], None]) -> Callable[[Any], None]:
        def register_routing_replay(module: Any) -> None:
            register(module)
            if hasattr(module, "routing_replay"):
                self._routers[id(module.routing_replay)] = _Router(module)

        return register_routing_replay

    def _watch_layout(self, prepare: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def prepare_routed_experts_for_routing_replay(
            experts: Sequence[Tensor], tokens: Sequence[Tensor], *, num_experts: int, **layout: Any
        ) -> Tensor:
            marks = [
                torch.full((len(each) - 1, 1, 1), _TOKEN, dtype=torch.int32, device="cpu")
                for each in tokens
            ]
            marked = prepare(marks, tokens, num_experts=1, **layout)
            rows = marked[:, 0, 0] == _TOKEN
            self._rows.append(rows)
            self._tokens.append(int(rows.sum()))
            return prepare(experts, tokens, num_experts=num_experts, **layout)

        return prepare_routed_experts_for_routing_replay

    def _watch_choices(self, choose: Callable[..., Any], replay: Any) -> Callable[..., Any]:
        def get_routing_replay_compute_topk(own: Callable[..., Any]) -> Callable[..., Any]:
            replayed = choose(own)

            def compute_topk(scores: Tensor, topk: int, *given: Any, **named: Any) -> Any:
                current = replay.ROUTING_REPLAY
                before = getattr(current, "forward_index", None)
                probs, chosen = replayed(scores, topk, *given, **named)
                # It moves on only where a forward pass replays: not in the reference's pass, and
                # not in that of the backward pass, which recomputes activations.
                if before is not None and current.forward_index == before + 1:
                    with torch.no_grad():
                        _, native = own(scores.detach(), topk, *given, **named)
                        self._add(id(current), before, chosen, native)
                return probs, chosen

            return compute_topk

        return get_routing_replay_compute_topk

    def _add(self, key: int, batch: int, chosen: Tensor, native: Tensor) -> None:
        """Add a router's pass over a micro-batch: experts [rows, top_k], replayed and its own."""
        router = self._routers[key]
        router.passes += 1
        if router.passes > len(self._rows):
            return  # a later pass over the same samples: the routers may have learned since
        rows = self._rows[batch].to(chosen.device, non_blocking=True)
        self._rows[batch] = rows
        other = ~(chosen.unsqueeze(2) == native.unsqueeze(1)).any(2)
        count = (other.sum(1) * rows).sum()
        router.other = count if router.other is None else router.other + count
        router.tokens += self._tokens[batch]
        router.top_k = chosen.shape[1]
