"""Steps per hour of ``run.overlap`` none, step and stream, with real processes and slow tests.

    python -m tests.benchmarks.bench_asynchronous --steps 12 --staleness 2

Engine, gateway, sandboxes and trainer are real, the policy samples noise, and a fault plan makes
its grading slow: a second each, and for one in eight the seconds of ``--slow``. The limit is the
same work without any wait for the slowest: the mean of all rollouts' seconds, over their places.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from runners.store.run_store import RunStore
from runners.testing.tiny_tokenizer import tiny_tokenizer, write_tiny_tokenizer
from tests.fakes.tiny_model import write_tiny_model

SLOW_SHARE = 0.125
FEW = [
    *("scenario=linear", "run.tasks_per_step=2", "run.rollouts_per_task=4", "run.eval_tasks=0"),
    *("harness.max_turns=3", "sampling.max_new_tokens=48", "trainer.entropy_bonus=0.01"),
    *("trainer.correction.truncate=token", "trainer.threads=1", "engine.threads=1"),
    *("rollout.concurrency=32", "observe.dashboard=off"),
]


def measure(folder: Path, name: str, arguments: argparse.Namespace, *overrides: str) -> list[str]:
    """Run a campaign; return its line of the table."""
    plan, policy, run_dir = folder / "plan.yaml", folder / "policy", folder / name
    command = [
        *(sys.executable, "-m", "cli.main", "run", "--json", *FEW, f"run.steps={arguments.steps}"),
        *(f"model.path={policy}", f"model.tokenizer={policy}", f"run.dir={run_dir}"),
        *("faults=file", f"faults.path={plan}", *overrides),
    ]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    with RunStore.open(run_dir, read_only=True) as store:
        ends = [row.finished_at for row in store.steps() if row.finished_at is not None]
    # From the first step's end on: without the start, and with all rollouts that are under way.
    per_hour = 3600 * (len(ends) - 1) / (ends[-1] - ends[0])
    ages = [line["policy/staleness_mean"] for line in lines[len(lines) // 3 :]]
    most = max(line["policy/staleness_max"] for line in lines)
    return [name, f"{per_hour:.1f}", f"{sum(ages) / len(ages):.2f}", f"{most:g}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--slow", type=float, default=15.0)
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
            "  - {where: grade, what: delay, seconds: 1}\n"
        )
        rows = [
            measure(folder, "none", arguments),
            measure(folder, "step", arguments, "run.overlap=step"),
            measure(folder, "stream", arguments, "run.overlap=stream", *stream),
        ]
    table = Table("run.overlap", "steps/h", "x none", "staleness mean", "max")
    for name, per_hour, mean, most in rows:
        table.add_row(name, per_hour, f"{float(per_hour) / float(rows[0][1]):.2f}", mean, most)
    Console().print(table)


if __name__ == "__main__":
    main()
