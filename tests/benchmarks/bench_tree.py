"""Training on a prefix tree against plain rows, on recorded steps.

    python -m tests.benchmarks.bench_tree                          # records two steps of both
    python -m tests.benchmarks.bench_tree --runs RUN_DIR RUN_DIR   # of runs that exist
    python -m tests.benchmarks.bench_tree --runs RUN_DIR --save-steps FILE.npz
    python -m tests.benchmarks.bench_tree --policy qwen3_0_6b --device cuda --steps FILE.npz
    python -m tests.benchmarks.bench_tree --policy qwen3_0_6b --device cuda --synthetic

Every variant computes the gradient of the same samples with the same weights, those from which the
step was trained. ``rows``: a padded row per sample; ``tree``: as it is. ``low agreement`` is the
same step as if no two rollouts agreed on anything from a rollout's first sampled token on. Times
are CPU times of one thread, the least of the repetitions, which take turns. ``distance`` is the
difference of the gradient from that of rows in float32, relative to its norm; for rows, of rows in
other batches.

With ``--policy`` the same samples train a published policy's shape with random weights, in bfloat16
with recomputed activations, as one would train it on a GPU. Times are by the clock; tokens
per second count the samples one by one. Recorded tokens are all below its vocabulary.
``--synthetic`` is a long step as agent programs make it (``synthetic_step.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from conf.compose import from_json
from conf.schema import Config
from conf.sections.training import LocalTrainerConfig
from runners.records.graph import common_prefix_length
from runners.records.store.run_store import RunStore
from runners.training.advantages import StepGroups
from runners.training.local import LocalTrainer
from runners.training.sample import Rollout, Sample
from runners.training.step_samples import build_samples, load_rollout
from tests.benchmarks.saved_steps import load_steps, save_steps
from tests.benchmarks.synthetic_step import StepShape, make_synthetic_step
from tests.benchmarks.tree_of_published import (
    SHAPES,
    WAYS,
    Settings,
    measure_ways,
    write_random_policy,
)

SCENARIOS = ("mixed", "linear")
OTHER_BATCHES = 3000
"""Positions of a micro-batch of the rows that tell how far rounding goes."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A trained step of a run."""

    name: str
    config: Config
    weights: Path
    """Of the policy that its rollouts were sampled from."""
    rollouts: Sequence[Rollout]


def record(scenario: str, directory: Path) -> Path:
    """Run two steps of a campaign; return its directory."""
    run_dir = directory / scenario
    command = [sys.executable, "-m", "cli.main", "run", f"scenario={scenario}", "run.steps=2"]
    subprocess.run([*command, f"run.dir={run_dir}"], check=True, stdout=subprocess.DEVNULL)
    return run_dir


def read_steps(run_dir: Path) -> Iterator[RecordedStep]:
    """Yield the steps of a run whose weights are kept: those after its first checkpoint."""
    with RunStore.open(run_dir, read_only=True) as store:
        config = from_json(json.dumps(store.config()), source=str(run_dir))
        load = partial(load_rollout, store, None)
        for weights in sorted((run_dir / "checkpoints").glob("step-*")):
            step = int(weights.name.removeprefix("step-")) + 1
            records = store.rollouts(step=step, split="train", counts=True)
            if records:
                rollouts = build_samples(StepGroups(config, records), load, config).rollouts
                name = f"{config.scenario.kind} step {step}"
                yield RecordedStep(name, config, weights, rollouts)


def disagree(rollouts: Sequence[Rollout], vocabulary: int) -> list[list[Sample]]:
    """Return rollouts that agree on nothing from each one's first sampled token on: every rollout's
    tokens after it are renamed in its own way.
    """
    changed = []
    for number, rollout in enumerate(rollouts):
        names = np.random.default_rng(number).permutation(vocabulary).astype(np.int32)
        changed.append([_rename(sample, rollout, names) for sample in rollout])
    return changed


def _rename(sample: Sample, rollout: Rollout, names: np.ndarray) -> Sample:
    starts = [int(np.argmax(other.loss_mask)) for other in rollout]
    shared = [common_prefix_length(sample.tokens, other.tokens) for other in rollout]
    first = min(start for start, common in zip(starts, shared, strict=True) if start <= common)
    tokens = sample.tokens.copy()
    tokens[first:] = names[tokens[first:]]
    return replace(sample, tokens=tokens)


def make_trainers(step: RecordedStep) -> dict[str, LocalTrainer]:
    """Return a trainer per variant."""
    config = step.config.trainer
    assert isinstance(config, LocalTrainerConfig)
    config = config.model_copy(update={"threads": 1, "grad_clip": 1e9})
    other = config.model_copy(update={"tokens_per_microbatch": OTHER_BATCHES})
    options: dict[str, Any] = {
        "weights": step.weights, "temperature": step.config.sampling.temperature, "seed": 0,
    }  # fmt: skip
    trainers: dict[str, LocalTrainer] = {
        "rows": LocalTrainer(config, **options),
        "rows, other batches": LocalTrainer(other, **options),
        "tree": LocalTrainer(config, **options),
    }
    for name in ("rows", "rows, other batches"):
        trainers[name].no_tree = "to be compared with"
    return trainers


def measure(step: RecordedStep, repetitions: int) -> Mapping[str, dict[str, float]]:
    """Return the figures of each variant on one step."""
    trainers = make_trainers(step)
    found: dict[str, dict[str, float]] = {name: {} for name in trainers}
    gradients: dict[str, torch.Tensor] = {}
    for _ in range(repetitions):
        for name, trainer in trainers.items():
            before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
            started = time.process_time()
            metrics = trainer.step(step.rollouts)
            seconds = time.process_time() - started
            gradients[name] = torch.cat(
                [p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]
            )
            trainer.model.load_state_dict(before)
            figures = found[name]
            figures["seconds"] = min(seconds, figures.get("seconds", seconds))
            figures |= {key: metrics[f"train/{key}"] for key in ("positions", "nodes")}
            figures |= {"flat": metrics["train/positions_flat"]}
    plain = gradients["rows"]
    for name in found:
        other = "rows, other batches" if name == "rows" else name
        found[name]["distance"] = ((gradients[other] - plain).norm() / plain.norm()).item()
    del found["rows, other batches"]
    return found


def main() -> None:
    """Print a table, or JSON."""
    options = read_options()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as directory:
        if options.policy:
            measure_published(options, Path(directory))
            return
        runs = options.runs or [record(name, Path(directory)) for name in SCENARIOS]
        steps = [step for run_dir in runs for step in read_steps(run_dir)]
        if options.save_steps:
            save_steps(options.save_steps, [(step.name, [*step.rollouts]) for step in steps])
            return
        rows = [
            (step.name, name, figures)
            for recorded in steps
            for step in (recorded, make_low_agreement(recorded))
            for name, figures in compare(step, options.repetitions)
        ]
    if options.json:
        print_json(rows)
        return
    table = Table("step", "variant", "positions", "of flat", "packing", "speed", "distance")
    for recorded_step, variant, row in rows:
        table.add_row(
            recorded_step, variant, *describe_positions(row, variant),
            f"{row['speed']:.2f}", f"{row['distance']:.1e}",
        )  # fmt: skip
    Console(width=110).print(table)


def read_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--save-steps", type=Path, metavar="FILE", help="write the steps, only")
    published = parser.add_argument_group("a published policy")
    published.add_argument("--policy", choices=SHAPES)
    published.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    published.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    published.add_argument("--steps", type=Path, metavar="FILE", help="of --save-steps")
    published.add_argument("--only", metavar="TEXT", default="", help="steps with this name")
    published.add_argument("--synthetic", action="store_true", help="a long step")
    published.add_argument("--tasks", type=int, default=4, help="of the long step")
    published.add_argument("--agreement", type=float, default=StepShape().agreement)
    published.add_argument("--shrink", type=int, default=1, help="the long step, so many times")
    published.add_argument("--tokens-per-microbatch", type=int, default=32_768)
    published.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    published.add_argument(
        "--exact", action="store_true", help="distance from rows in float32, which are run, too"
    )
    options = parser.parse_args()
    if bool(options.policy) != bool(options.steps or options.synthetic):
        parser.error("--policy needs --steps or --synthetic, and they need it")
    return options


def make_low_agreement(step: RecordedStep) -> RecordedStep:
    """Return the step as if no two rollouts agreed."""
    vocabulary = json.loads((step.weights / "config.json").read_text())["vocab_size"]
    rollouts = disagree(step.rollouts, vocabulary)
    return replace(step, name=f"{step.name}, low agreement", rollouts=rollouts)


def compare(step: RecordedStep, repetitions: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the figures of each variant with its speed, that of rows being 1."""
    variants = measure(step, repetitions)
    before = variants["rows"]["seconds"]
    for name, figures in variants.items():
        yield name, figures | {"speed": before / figures["seconds"]}


def print_json(rows: Sequence[tuple[str, str, dict[str, float]]]) -> None:
    """Print the figures as JSON."""
    found = [{"step": step, "variant": name, **figures} for step, name, figures in rows]
    print(json.dumps({"benchmark": "tree", "rows": found}))


def describe_positions(row: Mapping[str, float], variant: str) -> tuple[str, str, str]:
    """Return positions, their share of those that samples take one by one, and packing."""
    return (
        f"{row['positions']:,.0f}", f"1 / {row['flat'] / row['positions']:.2f}",
        f"{row['nodes'] / row['positions']:.3f}" if variant == "tree" else "",
    )  # fmt: skip


def measure_published(options: argparse.Namespace, directory: Path) -> None:
    """Print the figures of each way as soon as they are known: a line each, or JSON at the end."""
    settings = Settings(
        device=options.device, precision=options.precision, repetitions=options.repetitions,
        tokens_per_microbatch=options.tokens_per_microbatch, ways=options.ways, exact=options.exact,
    )  # fmt: skip
    weights = write_random_policy(options.policy, directory / "policy", options.device)
    steps = list(load_steps(options.steps)) if options.steps else []
    if options.synthetic:
        shape = StepShape(tasks=options.tasks, agreement=options.agreement).shrink(options.shrink)
        vocabulary = SHAPES[options.policy]["vocab_size"]
        steps.append(("synthetic", make_synthetic_step(shape, vocabulary=vocabulary)))
    rows = []
    for step, rollouts in steps:
        if options.only not in step:
            continue
        for way, figures in measure_ways(weights, rollouts, settings):
            rows.append((step, way, figures))
            positions, share, packing = describe_positions(figures, way)
            print(
                f"{step}, {way}: {positions} positions ({share}) {packing}, "
                f"{figures['seconds']:.2f} s, {figures['tokens_per_s']:,.0f} tokens/s, peak "
                f"{figures['peak_gib']:.1f} GiB, distance {figures['distance']:.1e}; start "
                f"{figures['start_s']:.1f} s, warm-up {figures['warm_up_s']:.1f} s, "
                f"{figures['compiled']:.0f} compiled, "
                f"{figures['compiled_timed']:.0f} of them after it",
                file=sys.stderr if options.json else sys.stdout, flush=True,
            )  # fmt: skip
    if options.json:
        print_json(rows)


if __name__ == "__main__":
    main()
