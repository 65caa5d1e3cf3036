"""Steps per hour of ``run.overlap`` none, step and stream, with real processes and slow tests.

    python -m tests.benchmarks.bench_asynchronous --steps 12 --staleness 2
    python -m tests.benchmarks.bench_asynchronous --wait 8 --slow 8 --epochs 16

Engine, gateway, sandboxes and trainer are real, the policy samples noise, and a fault plan makes
its grading slow: by ``--wait`` seconds, one in eight by those of ``--slow``. With more passes
over the samples (``--epochs``) training takes as long as rollouts, which is what ``step`` is for.
Limits, of the synchronous campaign's own times: of ``step`` the longer of rollouts and training, of
``stream`` training alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from runners.records.store.run_store import RunStore
from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from tests.fakes.tiny_model import write_tiny_model

SLOW_SHARE = 0.125
FEW = [
    *("scenario=linear", "run.tasks_per_step=2", "run.rollouts_per_task=4", "run.eval_tasks=0"),
    *("harness.max_turns=3", "sampling.max_new_tokens=48", "trainer.entropy_bonus=0.01"),
    *("trainer.correction.truncate=token", "trainer.threads=1", "engine.threads=1"),
    *("rollout.concurrency=32", "observe.dashboard=off"),
]


@dataclass(frozen=True, slots=True)
class Measured:
    """A line of the table."""

    name: str
    per_hour: float
    age: float
    oldest: int
    rollout_s: float
    """Mean of a synchronous step, like the two below."""
    train_s: float
    step_s: float


def measure(folder: Path, name: str, arguments: argparse.Namespace, *overrides: str) -> Measured:
    """Run a campaign and measure it."""
    plan, policy, run_dir = folder / "plan.yaml", folder / "policy", folder / name
    command = [
        *(sys.executable, "-m", "cli.main", "run", "--json", *FEW, f"run.steps={arguments.steps}"),
        *(f"model.path={policy}", f"model.tokenizer={policy}", f"run.dir={run_dir}"),
        *("faults=file", f"faults.path={plan}", f"trainer.epochs={arguments.epochs}", *overrides),
    ]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    with RunStore.open(run_dir, read_only=True) as store:
        ends = [row.finished_at for row in store.steps() if row.finished_at is not None]
    # From the first step's end on: without the start, and with all rollouts that are under way.
    per_hour = 3600 * (len(ends) - 1) / (ends[-1] - ends[0])
    return Measured(
        name,
        per_hour,
        fmean(line["policy/staleness_mean"] for line in lines[len(lines) // 3 :]),
        max(line["policy/staleness_max"] for line in lines),
        *(
            fmean(line[f"time/{name}_s"] for line in lines[1:])
            for name in ("rollout", "train", "step")
        ),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--slow", type=float, default=15.0)
    parser.add_argument("--wait", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()
    stream = (f"run.staleness={arguments.staleness}", f"run.window={arguments.staleness}")
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_tiny_tokenizer(folder / "policy")
        write_tiny_model(folder / "policy", vocab_size=tiny_tokenizer().get_vocab_size())
        (folder / "plan.yaml").write_text(
            "seed: 0\nrules:\n"
            f"  - {{where: grade, when: {{probability: {SLOW_SHARE}}}, what: delay, "
            f"seconds: {arguments.slow:g}}}\n"
            f"  - {{where: grade, what: delay, seconds: {arguments.wait:g}}}\n"
        )
        rows = [
            measure(folder, "none", arguments),
            measure(folder, "step", arguments, "run.overlap=step"),
            measure(folder, "stream", arguments, "run.overlap=stream", *stream),
        ]
    table = Table("run.overlap", "steps/h", "x none", "limit", "staleness mean", "max")
    none = rows[0]
    limits = (none.step_s, max(none.rollout_s, none.step_s - none.rollout_s), none.train_s)
    for row, limit_s in zip(rows, limits, strict=True):
        ratio, age = row.per_hour / none.per_hour, f"{row.age:.2f}"
        limit = f"{none.step_s / limit_s:.2f}"
        table.add_row(row.name, f"{row.per_hour:.1f}", f"{ratio:.2f}", limit, age, f"{row.oldest}")
    table.caption = f"none: {none.rollout_s:.1f} s of rollouts and {none.train_s:.1f} s of training"
    Console().print(table)


if __name__ == "__main__":
    main()
