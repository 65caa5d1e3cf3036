"""Routing replay in a trainer's step: check the captured routing, replay it, measure its effect.

R3 (Ma et al. 2025, arXiv 2510.11370) replays the engine's choices; R2 the trainer's own from before
the step's first update. Every step is checked, before its first update: shapes, ranges and distinct
experts before the replay; how often each router fired; how much its own choices differ, per sample
and per layer; and how the mismatch compares with the one last measured without replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from conf.sections.training import RoutingRecomputeConfig, RoutingRolloutConfig
from runners.records.routing import Routing, RoutingError, RoutingShape, TokenAgreement
from runners.training.hidden_states import ForwardScope
from runners.training.micro_batches import MicroBatch, select_tokens
from runners.training.peers import TrainingPeers
from runners.training.recompute import Contexts
from runners.training.routing.check import find_routing_fault
from runners.training.routing.disagreement import DisagreementCheck
from runners.training.routing.replay import ReplayCounts, RouterReplay
from runners.training.routing.shadow import ShadowComparison
from runners.training.sample import Sample


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """A micro-batch whose routing is being replayed."""

    scope: ForwardScope
    find_faults: Callable[[], list[int]]
    """Judges the samples after their forward pass; returns the numbers of those at fault."""

    def leave_out_faults(self, batch: MicroBatch, found: Tensor) -> tuple[MicroBatch, Tensor]:
        """Return the batch and what was computed of its trained tokens, [n, …], without those of
        samples whose routing is not their own.
        """
        faulty = self.find_faults()
        if not faulty:
            return batch, found
        kept = torch.isin(batch.rows, torch.tensor(faulty, device=batch.rows.device), invert=True)
        return select_tokens(batch, kept), found[kept]


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
        """Rollouts of the step whose routing is impossible or another's, with the reason."""
        self.agreements: list[TokenAgreement] = []
        """Of the step's samples that this process ran."""
        self._totals = _Totals()
        self._check: DisagreementCheck | None = None
        """Of the step's first pass over its samples; None: it is over, or nothing is compared."""
        self.shadow = ShadowComparison()

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
        # The steps until the next one are compared with it: a resumed run measures at once.
        return bool(every) and (self.shadow.native is None or step % every == 1 % every)

    def admit(self, samples: Sequence[Sample]) -> list[Sample]:
        """Begin a step: check its samples and return those to train on.

        A sample whose routing is impossible raises RoutingError or, with ``on_fault`` "mask", comes
        back with advantage 0 and without routing. RoutingError also if no token of the step came
        with its routing.
        """
        self._totals, self.refused, self.agreements = _Totals(), {}, []
        if isinstance(self.config, RoutingRecomputeConfig):
            return list(samples)
        self._check = DisagreementCheck(
            self.config.alarm_disagreement, self.shape.routed, self.shape.top_k
        )
        admitted = []
        for sample in samples:
            fault = find_routing_fault(sample, self.shape) if sample.routing is not None else None
            if fault is not None and self.config.on_fault == "stop":
                raise RoutingError(f"{sample.rollout_id} {fault}")
            if fault is not None:
                self._totals.refused += 1
                self.refused.setdefault(sample.rollout_id, fault)
                sample = sample.without_routing()
            elif sample.routing is not None:
                self._totals.captured += int(sample.routing.valid.sum())
            self._totals.tokens += len(sample.tokens) - 1  # the last has no routing
            admitted.append(sample)
        self._totals.refused_at_once = self._totals.refused
        if admitted and not self._totals.captured and self.config.on_fault == "stop":
            raise RoutingError(
                f"not one token of {len(admitted)} samples came with its routing: the engine, or "
                "what stands before it, drops `return_routed_experts`; `agentrl check` says which"
            )
        return admitted

    @contextmanager
    def replay(self, batch: MicroBatch) -> Iterator[ReplayedBatch]:
        """Replay a micro-batch's routing in forward and backward.

        Raises RoutingError at the end if a router did not fire.
        """
        experts, routed = batch.experts, batch.routed
        if experts is None or routed is None:
            size, device = batch.input_ids.numel(), batch.input_ids.device
            shape = size, self.shape.layers, self.shape.top_k
            experts = torch.zeros(shape, dtype=torch.int16, device=device)
            routed = torch.zeros(size, dtype=torch.bool, device=device)
        with self._replay.micro_batch() as fired:
            yield ReplayedBatch(
                lambda: self._replay.forward(experts, routed),
                lambda: self._find_faults(batch, routed, fired),
            )
        self._count(batch, fired)

    @contextmanager
    def record(
        self, batch: MicroBatch, samples: Sequence[Sample]
    ) -> Iterator[tuple[ForwardScope, dict[int, Routing]]]:
        """Record the choices of the trainer's own routers in a forward pass.

        ``samples``: the list that was batched. Yields the scope of its forward call, and a
        dictionary that holds the routing of each sample (by ``MicroBatch.samples``) after the
        block; tokens that are not run have none.
        """
        size = batch.input_ids.numel()
        calls: list[dict[int, Tensor]] = []
        recorded: dict[int, Routing] = {}

        @contextmanager
        def scope() -> Iterator[None]:
            everything = torch.ones(size, dtype=torch.bool, device=batch.input_ids.device)
            with self._replay.forward(None, everything) as seen:
                yield
            calls.append(seen)

        with self._replay.micro_batch():
            yield scope, recorded
        experts = np.zeros((size, self.shape.layers, self.shape.top_k), np.int64)
        for seen in calls:
            for layer, chosen in seen.items():
                experts[:, layer] = chosen.cpu().numpy()
        for index, path in zip(batch.samples, batch.paths, strict=True):
            length = len(samples[index].tokens)
            rows = np.tile(np.arange(self.shape.top_k), (length, self.shape.layers, 1))
            rows[: len(path)] = experts[path]
            recorded[index] = Routing(self.shape.cast_ids(rows), np.arange(length) < len(path))

    def metrics(
        self, replayed: Mapping[str, float | None], native: Mapping[str, float | None] | None
    ) -> dict[str, Any]:
        """Return the step's metrics under ``r3/``: the mismatch with replay, the ``native`` one
        without it if that was measured, and the share of tokens that was replayed.

        ``r3/routing_share`` is ``1 − k3 / k3_native``: the part of the mismatch that routing
        explains.
        """
        totals = self._totals
        share = None
        k3, k3_native = replayed["k3"], None if native is None else native["k3"]
        if k3 is not None and k3_native is not None:
            share = 1.0 - k3 / k3_native if k3_native > 0 else 0.0
        return {
            **{f"r3/{name}": value for name, value in replayed.items()},
            **{f"r3/{name}_native": native and native[name] for name in COMPARED},
            "r3/captured": _share(totals.captured, totals.tokens),
            "r3/replayed": _share(totals.replayed, totals.rows),
            "r3/disagree_slot": _share(totals.other_slots, totals.slots),
            "r3/disagree_token": _share(totals.other_rows, totals.replayed),
            "r3/disagree_sample_max": totals.other_most,
            "r3/invalid_rows": float(totals.tokens - totals.captured),
            "r3/refused_samples": float(totals.refused),
            "r3/gate_grad_norm": totals.gate_norm,
            "r3/routing_share": share,
        }

    def merge(self, peers: TrainingPeers) -> None:
        """Replace the figures of one process's share of a step by those of the step."""
        totals = self._totals
        sums = [float(getattr(totals, name)) for name in _SUMMED]
        # those that ``admit`` refused are the same everywhere
        *sums, found = peers.add([*sums, totals.refused - totals.refused_at_once])
        for name, value in zip(_SUMMED, sums, strict=True):
            setattr(totals, name, int(value))
        totals.refused = totals.refused_at_once + int(found)

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

    def end_first_pass(self, peers: TrainingPeers) -> None:
        """End the first pass over a step's samples, before its first update.

        Raises RoutingError if choices of the whole step are not training's own, or if those of a
        sample are not and ``on_fault`` is "stop".
        """
        check, self._check = self._check, None
        if check is None or isinstance(self.config, RoutingRecomputeConfig):
            return
        self.agreements = check.agreements
        check.merge(peers)
        for rollout_id, reason in check.faults:
            self.refused.setdefault(rollout_id, reason)
        self._totals.other_most = check.largest
        fault = check.find_fault()
        if fault is not None:
            raise RoutingError(f"{fault}: the rows belong to other tokens, layers or weights")
        if check.faults and self.config.on_fault == "stop":
            rollout_id, reason = check.faults[0]
            raise RoutingError(
                f"{rollout_id} {reason} ({len(check.faults)} of {check.samples} samples at fault)"
            )

    def _find_faults(self, batch: MicroBatch, routed: Tensor, fired: ReplayCounts) -> list[int]:
        """Judge a micro-batch; return the numbers of the samples at fault."""
        if self._check is None or len(fired.rows) != 1:
            return []  # a router that did not fire is an alarm of its own
        before = len(self._check.faults)
        faulty = self._check.add(batch, routed, fired.rows[0])
        self._totals.refused += len(faulty)
        for rollout_id, reason in self._check.faults[before:]:
            self.refused.setdefault(rollout_id, reason)
        return faulty

    def _count(self, batch: MicroBatch, fired: ReplayCounts) -> None:
        totals, layers = self._totals, len(self._replay.routers)
        totals.rows += _count_routable(batch) * fired.calls
        totals.replayed += fired.replayed // layers
        totals.slots += fired.slots
        totals.other_slots += fired.other_slots
        totals.other_rows += sum(int((row > 0).any(dim=1).sum()) for row in fired.rows)


COMPARED = ("k3", "p999_abs", "F_1.1")
"""Figures that are reported without replay too: its effect is in the tail."""


_SUMMED = ("rows", "replayed", "slots", "other_slots", "other_rows")
"""Counts of a pass over samples: with several processes each has those of its share."""


class _Totals:
    """Sums over one step."""

    def __init__(self) -> None:
        self.tokens = self.captured = self.refused = self.refused_at_once = 0
        self.rows = self.replayed = self.slots = self.other_slots = 0
        self.other_rows = 0
        self.other_most: float | None = None
        self.gate_norm = 0.0


def _share(count: int, whole: int) -> float | None:
    """Return ``count / whole``; None of nothing."""
    return count / whole if whole else None


def _count_routable(batch: MicroBatch) -> int:
    """Count the positions that may have routing: not padding."""
    return batch.input_ids.numel() if batch.tree is not None else batch.nodes
