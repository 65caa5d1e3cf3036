"""Measure the self-check of routing replay: alarms on injected faults, none on healthy steps, cost.

    python -m tests.benchmarks.bench_routing_alarms --steps 50 --seeds 0 1 2

Every step samples from an engine of the trainer's present weights, in another precision, and trains
on it. Faults (``tests/fakes/routing_replay.py``) are injected between two shadow measurements.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from conf.compose import compose
from conf.sections.training import LocalTrainerConfig
from runners.engines.embedded.rounding import Precision
from runners.records.routing import RoutingError
from runners.records.starting_policy import find_shipped_policy
from runners.training.local import LocalTrainer
from runners.training.routing.disagreement import DisagreementCheck
from runners.training.routing.shape import read_routing_shape
from runners.training.sample import Sample
from tests.benchmarks.bench_routing import (
    ENGINES,
    prompts,
    random_policy,
    random_prompts,
    sample_rollouts,
)
from tests.fakes.routing_replay import FAULTS, inject

SAMPLES = 20
NEW_TOKENS = 48
FAULT_AFTER = 3
"""Healthy steps before a fault; shadows are every ten."""


class Watched:
    """A trainer with the default self-check, and engines of a precision that serve its weights."""

    def __init__(self, policy: Path, precision: Precision, asked: Sequence[list[int]]) -> None:
        config = compose(["routing_replay=rollout"])
        assert isinstance(config.trainer, LocalTrainerConfig)
        shape = read_routing_shape(policy)
        assert shape is not None
        self.shape, self.precision, self.asked = shape, precision, asked
        self.trainer = LocalTrainer(
            config.trainer, weights=policy, temperature=1.0, seed=0, routing=config.routing_replay
        )

    def sample(self, number: int) -> list[Sample]:
        """Return the samples of step ``number``."""
        start = number * SAMPLES % (len(self.asked) - SAMPLES + 1)
        with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as directory:
            self.trainer.model.save_pretrained(directory)  # type: ignore[operator]
            rollouts = sample_rollouts(
                Path(directory), self.asked[start : start + SAMPLES], self.precision,
                new_tokens=NEW_TOKENS,
            )  # fmt: skip
        return [sample for [sample] in rollouts]

    def step(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Train; raises RoutingError on an alarm."""
        return self.trainer.step([[sample] for sample in samples])


def watch_healthy(watched: Watched, steps: int) -> dict[str, float]:
    """Make healthy steps; return the largest disagreement and the number of alarms."""
    most, layers, alarms = 0.0, 0.0, 0
    for number in range(steps):
        try:
            metrics = watched.step(watched.sample(number))
        except RoutingError as error:
            Console(stderr=True).print(f"false alarm: {error}")
            alarms += 1
            continue
        most = max(most, metrics["r3/disagree_sample_max"])
        layers = max(layers, metrics["r3/disagree_slot"])
    return {"steps": steps, "alarms": alarms, "step_most": layers, "sample_most": most}


def watch_faults(watched: Watched, seed: int) -> dict[str, str | None]:
    """Inject each fault in a step between shadows; return its alarm, None where there was none."""
    for number in range(FAULT_AFTER):
        watched.step(watched.sample(seed * 10 + number))
    good, found = watched.sample(seed * 10 + FAULT_AFTER), dict[str, str | None]()
    for fault in FAULTS:
        watched.trainer.steps = FAULT_AFTER
        try:
            watched.step(inject(fault, good, seed, watched.shape.experts))
            found[fault] = None
        except RoutingError as error:
            found[fault] = str(error)
    return found


@contextmanager
def timed() -> Iterator[list[float]]:
    """Yield a list that collects the seconds of each comparison."""
    spent: list[float] = []
    original = DisagreementCheck.add

    def add(self: DisagreementCheck, *given: Any) -> list[int]:
        began = time.perf_counter()
        try:
            return original(self, *given)
        finally:
            spent.append(time.perf_counter() - began)

    DisagreementCheck.add = add  # type: ignore[method-assign, assignment]
    try:
        yield spent
    finally:
        DisagreementCheck.add = original  # type: ignore[method-assign]


def measure_cost(watched: Watched) -> float:
    """Return the judgement's share of a step's time."""
    samples = watched.sample(0)
    watched.trainer.steps = 1  # no shadow
    with timed() as spent:
        metrics = watched.step(samples)
    return sum(spent) / float(metrics["time/train_s"])


def main() -> None:
    """Measure, print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=50, help="healthy steps per engine and policy")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = compose([])
    own = find_shipped_policy()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as directory:
        policies = {
            "tiny policy": (own, prompts(own, config.scenario.kind, 20 * SAMPLES)),
            "random policy": (random_policy(Path(directory)), random_prompts(20 * SAMPLES)),
        }
        for name, (policy, asked) in policies.items():
            for engine, precision in ENGINES.items():
                row: dict[str, Any] = {"policy": name, "engine": engine}
                row |= watch_healthy(Watched(policy, precision, asked), options.steps)
                row["missed"] = []
                for seed in options.seeds:
                    found = watch_faults(Watched(policy, precision, asked), seed)
                    row["missed"] += [f"{fault} ({seed})" for fault in found if not found[fault]]
                row["cost"] = measure_cost(Watched(policy, precision, asked))
                results.append(row)
                Console(stderr=True).print(row)
    table = Table(title="self-check of routing replay")
    missed = f"missed of {len(FAULTS) * len(options.seeds)}"
    differ = ("slots that differ, most", "of a sample")
    for column in ("policy", "engine", "healthy steps", "false alarms", *differ, missed, "cost"):
        table.add_column(column, justify="right")
    for row in results:
        table.add_row(
            row["policy"], row["engine"], str(row["steps"]), str(row["alarms"]),
            f"{row['step_most']:.2%}", f"{row['sample_most']:.2%}", str(len(row["missed"])),
            f"{row['cost']:.2%}",
        )  # fmt: skip
    Console(stderr=True, width=140).print(table)
    print(json.dumps({"benchmark": "routing_alarms", "results": results}))


if __name__ == "__main__":
    main()
