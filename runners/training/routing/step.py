"""Routing replay in a trainer's step: check the captured routing, replay it, measure its effect.

R3 (Ma et al. 2025, arXiv 2510.11370) replays the engine's choices; R2 the trainer's own from before
the step's first update. The self-check of a step is cheap: shapes, ranges and distinct experts
before the replay; after it, how often each router fired and how much its own choices differ. A
violation names layer and sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conf.sections.training import RoutingRecomputeConfig, RoutingRolloutConfig
from runners.training.micro_batches import MicroBatch
from runners.training.prefix import ForwardScope
from runners.training.recompute import Contexts
from runners.training.routing.check import find_routing_fault
from runners.training.routing.replay import ReplayCounts, RouterReplay
from runners.training.sample import Sample
from runners.trajectory.routing import Routing, RoutingError, RoutingShape

FEWEST_SLOTS = 256
"""Fewer choices of a layer are too few to judge whether they are its own."""


class RoutingReplay:
    """Routing replay of one trainer; ``admit`` begins a step. Used from one thread."""

    def __init__(
        self,
        policy: nn.Module,
        config: RoutingRecomputeConfig | RoutingRolloutConfig,
        shape: RoutingShape,
    ) -> None:
        """Add hooks to the policy's routers; raises RoutingError if ``shape`` has others."""
        self.config = config
        self.shape = shape
        self._replay = RouterReplay(policy)
        found = tuple(self._replay.routers)
        if (self._replay.layers, found) != (shape.layers, shape.routed):
            raise RoutingError(
                f"layers {list(found)} of {self._replay.layers} route, and the policy's "
                f"config.json says {list(shape.routed)} of {shape.layers}: rows would be replayed "
                "in other layers than their own; set routing_replay=off"
            )
        self.refused: dict[str, str] = {}
        """Rollouts of the step whose routing is impossible, with the reason."""
        self._totals = _Totals()

    @property
    def records(self) -> bool:
        """True if the trainer's own choices are recorded and then replayed in the step (R2)."""
        return isinstance(self.config, RoutingRecomputeConfig)

    @property
    def recomputation(self) -> Contexts:
        """The contexts in which a layer's experts are the same when it is computed again."""
        return self._replay.recomputation

    def shadow_due(self, step: int) -> bool:
        """Return whether step number ``step`` (1, 2, …) is also measured without replay."""
        every = getattr(self.config, "shadow_every", 0)
        return bool(every) and step % every == 1 % every

    def admit(self, samples: Sequence[Sample]) -> list[Sample]:
        """Begin a step: check its samples and return those to train on.

        A sample whose routing is impossible raises RoutingError or, with ``on_fault`` "mask", comes
        back with advantage 0 and without routing. RoutingError also if no token of the step came
        with its routing.
        """
        self._totals, self.refused = _Totals(), {}
        if isinstance(self.config, RoutingRecomputeConfig):
            return list(samples)
        admitted = []
        for sample in samples:
            fault = find_routing_fault(sample, self.shape) if sample.routing is not None else None
            if fault is not None and self.config.on_fault == "stop":
                raise RoutingError(f"{sample.rollout_id} {fault}")
            if fault is not None:
                self._totals.refused += 1
                self.refused.setdefault(sample.rollout_id, fault)
                sample = replace(sample, routing=None, advantage=0.0)
            elif sample.routing is not None:
                self._totals.captured += int(sample.routing.valid.sum())
            self._totals.tokens += len(sample.tokens) - 1  # the last has no routing
            admitted.append(sample)
        if admitted and not self._totals.captured and self.config.on_fault == "stop":
            raise RoutingError(
                f"not one token of {len(admitted)} samples came with its routing: the engine, or "
                "what stands before it, drops `return_routed_experts`; `agentrl check` says which"
            )
        return admitted

    @contextmanager
    def replay(self, batch: MicroBatch) -> Iterator[ForwardScope]:
        """Replay a micro-batch's routing in forward and backward; yield the scope of forward calls.

        Raises RoutingError at the end if a router did not fire, or if the choices of a layer are
        not its own (``alarm_disagreement``).
        """
        experts, routed = batch.experts, batch.routed
        if experts is None or routed is None:
            rows, columns = batch.input_ids.shape
            shape = (rows, columns, self.shape.layers, self.shape.top_k)
            experts = torch.zeros(shape, dtype=torch.int16, device=batch.input_ids.device)
            routed = torch.zeros((rows, columns), dtype=torch.bool, device=batch.input_ids.device)
        parts: list[tuple[slice, slice]] = []

        def scope(rows: slice, positions: slice) -> AbstractContextManager[object]:
            parts.append((rows, positions))
            own = experts[rows, positions]
            return self._replay.forward(own.flatten(0, 1), routed[rows, positions].flatten())

        with self._replay.micro_batch() as fired:
            yield scope
        self._check_disagreement(batch, routed, fired, parts)

    @contextmanager
    def record(self, batch: MicroBatch) -> Iterator[tuple[ForwardScope, dict[int, Routing]]]:
        """Record the choices of the trainer's own routers in a forward pass.

        Yields the scope of its forward calls, and a dictionary that holds the routing of each
        sample (by ``MicroBatch.samples``) after the block.
        """
        calls: list[tuple[slice, slice, dict[int, Tensor]]] = []
        recorded: dict[int, Routing] = {}

        @contextmanager
        def scope(rows: slice, positions: slice) -> Iterator[None]:
            part = batch.input_ids[rows, positions]
            everything = torch.ones(part.numel(), dtype=torch.bool, device=part.device)
            with self._replay.forward(None, everything) as seen:
                yield
            calls.append((rows, positions, seen))

        with self._replay.micro_batch():
            yield scope, recorded
        count, length = batch.input_ids.shape
        experts = np.zeros((count, length, self.shape.layers, self.shape.top_k), np.int64)
        for rows, positions, seen in calls:
            size = batch.input_ids[rows, positions].shape
            for layer, chosen in seen.items():
                experts[rows, positions, layer] = chosen.view(*size, -1).cpu().numpy()
            if rows != slice(None):  # a prefix that was run once serves all rows
                experts[:, positions] = experts[rows, positions]
        for row, (index, tokens) in enumerate(zip(batch.samples, batch.lengths, strict=True)):
            known = np.arange(tokens) < tokens - 1  # the last token is predicted, never run
            recorded[index] = Routing(self.shape.cast_ids(experts[row, :tokens]), known)

    def metrics(
        self, replayed: Mapping[str, float | None], native: Mapping[str, float | None] | None
    ) -> dict[str, Any]:
        """Return the step's metrics under ``r3/``: the mismatch with replay, the ``native`` one
        without it if that was measured, and the share of tokens that was replayed.

        ``r3/routing_share`` is ``1 − k3 / k3_native``: the part of the mismatch that routing
        explains. Raises RoutingError if replay makes the mismatch more than ten times as large.
        """
        totals = self._totals
        share = None
        k3, k3_native = replayed["k3"], None if native is None else native["k3"]
        if k3 is not None and k3_native is not None:
            share = 1.0 - k3 / k3_native if k3_native > 0 else 0.0
            if k3 > WORSE * max(k3_native, SMALLEST):
                raise RoutingError(
                    f"training differs more from the rollout with its routing (k3 {k3:.2e}) than "
                    f"without ({k3_native:.2e}): the rows belong to other tokens or layers"
                )
        return {
            **{f"r3/{name}": value for name, value in replayed.items()},
            **{f"r3/{name}_native": native and native[name] for name in COMPARED},
            "r3/captured": _share(totals.captured, totals.tokens),
            "r3/replayed": _share(totals.replayed, totals.rows),
            "r3/disagree_slot": _share(totals.other_slots, totals.slots),
            "r3/disagree_token": _share(totals.other_rows, totals.routed_rows),
            "r3/invalid_rows": float(totals.tokens - totals.captured),
            "r3/refused_samples": float(totals.refused),
            "r3/gate_grad_norm": totals.gate_norm,
            "r3/routing_share": share,
        }

    def measure_gradients(self) -> None:
        """Measure the norm of the routers' gradients; called before the optimizer's step."""
        grads = [
            weight.grad
            for router in self._replay.routers.values()
            for weight in router.parameters()
        ]
        norms = [grad.norm() for grad in grads if grad is not None]
        if norms:
            self._totals.gate_norm = max(self._totals.gate_norm, float(torch.stack(norms).norm()))

    def _check_disagreement(
        self,
        batch: MicroBatch,
        routed: Tensor,
        fired: ReplayCounts,
        parts: list[tuple[slice, slice]],
    ) -> None:
        totals = self._totals
        layers = len(self._replay.routers)
        totals.rows += sum(_count_routable(batch, rows, positions) for rows, positions in parts)
        totals.replayed += fired.replayed // layers
        totals.slots += fired.slots
        totals.other_slots += fired.other_slots
        totals.other_rows += sum(int((row > 0).sum()) for row in fired.rows)
        totals.routed_rows += fired.replayed // layers
        totals.other_by_layer.update(fired.other_by_layer)
        if not isinstance(self.config, RoutingRolloutConfig):
            return
        per_layer = totals.slots // layers
        if per_layer < FEWEST_SLOTS:
            return
        for layer in self._replay.routers:
            share = totals.other_by_layer[layer] / per_layer
            if share > self.config.alarm_disagreement:
                raise RoutingError(
                    f"{share:.0%} of layer {layer}'s replayed choices are none that training would "
                    f"make (worst: {_worst(batch, fired, parts)}): they belong to another token, "
                    "layer or model"
                )


COMPARED = ("k3", "p999_abs", "F_1.1")
"""Figures that are reported without replay too: its effect is in the tail."""
WORSE = 10.0
"""Replay that makes k3 so many times larger replays other tokens' or layers' rows."""
SMALLEST = 1e-8
"""A k3 below it is rounding."""


class _Totals:
    """Sums over one step."""

    def __init__(self) -> None:
        self.tokens = self.captured = self.refused = 0
        self.rows = self.replayed = self.slots = self.other_slots = 0
        self.other_rows = self.routed_rows = 0
        self.other_by_layer: Counter[int] = Counter()
        self.gate_norm = 0.0


def _share(count: int, whole: int) -> float | None:
    """Return ``count / whole``; None of nothing."""
    return count / whole if whole else None


def _worst(batch: MicroBatch, fired: ReplayCounts, parts: list[tuple[slice, slice]]) -> str:
    """Return the rollout whose routing differs most from the trainer's choices."""
    count = torch.zeros(len(batch.samples))
    for (rows, positions), row in zip(parts, fired.rows, strict=True):
        size = batch.input_ids[rows, positions].shape
        count[rows] += row.view(*size).sum(dim=1).float().cpu()
    return batch.rollout_ids[int(count.argmax())]


def _count_routable(batch: MicroBatch, rows: slice, positions: slice) -> int:
    """Count the tokens of a call that may have routing: not padding, not a sample's last."""
    start, stop, _ = positions.indices(batch.input_ids.shape[1])
    return sum(max(0, min(stop, length - 1) - start) for length in batch.lengths[rows])
