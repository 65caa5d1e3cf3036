"""The figures of a step from slime's training processes: metrics, alarm, and the file that brings
them to the process that owns the run's store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.sections.training import RoutingReplayConfig, RoutingRolloutConfig
from runners.campaigns.slime.megatron.mismatch_sums import SIZE, find_metrics
from runners.campaigns.slime.megatron.router_counts import COUNTS
from runners.observe.live import write_document
from runners.records.store import RunStore, raise_store_errors
from runners.training.routing import CERTAINTY, pool_rows

FOLDER = "training-figures"
FAULT = "routing_fault"
"""Event of a step whose routing is at fault as a whole."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Findings of all training processes in a step."""

    step: int
    """From 1."""
    metrics: dict[str, float | None]
    fault: str | None
    """Why the step's routing cannot be that of its tokens; None if nothing says so."""

    def write(self, run_dir: Path) -> None:
        """Write the step's file; raises StoreError."""
        folder = run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        content = {"step": self.step, "metrics": self.metrics, "fault": self.fault}
        write_document(folder / f"step-{self.step:06d}.json", content)


def judge_step(
    step: int, sums: NDArray[np.float64], config: RoutingReplayConfig, routing_layers: int
) -> StepFigures:
    """Return a step's figures.

    ``sums``: float64 [SIZE + layers · len(COUNTS)], over all processes; ``routing_layers``:
    the number of layers that route.
    """
    found = find_metrics(sums[:SIZE])
    metrics: dict[str, float | None] = {"policy/k3": found["k3"]}
    if not isinstance(config, RoutingRolloutConfig):
        return StepFigures(step, metrics, None)
    metrics |= {f"r3/{name}": value for name, value in found.items()}
    layers = sums[SIZE:].reshape(-1, len(COUNTS))
    _, choices, other, _ = layers.sum(axis=0)
    metrics["r3/disagree_slot"] = float(other / choices) if choices else None
    return StepFigures(
        step, metrics, _find_fault(layers, config.alarm_disagreement, routing_layers)
    )


def _find_fault(layers: NDArray[np.float64], limit: float, routing: int) -> str | None:
    """Return why no sample alone is at fault: a router that did not replay, or a layer whose
    replayed choices are not those of these tokens (``runners.training.routing.evidence``).
    """
    replayed = int((layers[:, 0] > 0).sum())
    if layers[:, 3].any() or replayed not in (0, routing):
        late = int((layers[:, 3] > 0).sum())
        return (
            f"{replayed} of {routing} routers replayed the rollouts' experts, and {late} not once "
            "per micro-batch"
        )
    for layer, (tokens, choices, other, _) in enumerate(layers):
        share = float(other / choices) if choices else 0.0
        if pool_rows(share, int(tokens), limit) > CERTAINTY:
            return (
                f"{share:.0%} of layer {layer}'s replayed choices for {int(tokens)} tokens are "
                "none that training would make"
            )
    return None


def move_figures(store: RunStore) -> str | None:
    """Move what training has written into the store, for the steps that are finished there; returns
    None if there was nothing, else the newest fault or "". Raises StoreError.
    """
    moved: str | None = None
    for file, figures in _read(store.run_dir):
        if not store.add_metrics(figures.step, figures.metrics):
            continue  # its rollouts' own metrics are still being computed
        if figures.fault is not None:
            store.event(FAULT, {"step": figures.step, "reason": figures.fault})
        moved = figures.fault or moved or ""
        with raise_store_errors(file):
            file.unlink(missing_ok=True)
    return moved


def drop_figures(run_dir: Path, done: int) -> None:
    """Remove the figures of steps after the first ``done``; raises StoreError."""
    for file, figures in _read(run_dir):
        if figures.step > done:
            with raise_store_errors(file):
                file.unlink(missing_ok=True)


def _read(run_dir: Path) -> Iterator[tuple[Path, StepFigures]]:
    """Yield the files, oldest step first; one that cannot be read is skipped."""
    for file in sorted((run_dir / FOLDER).glob("step-*.json")):
        try:
            content: dict[str, Any] = json.loads(file.read_text("utf-8"))
            yield file, StepFigures(content["step"], content["metrics"], content["fault"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
