"""Whole campaigns: time, solve rates and peak memory of `agentrl run` with its defaults.

    python -m tests.benchmarks.bench_campaign --seeds 0 1 2
    python -m tests.benchmarks.bench_campaign --seeds 0 --cold  # empty cache

CPU time is that of the whole process tree: divided by the number of cores it is the least wall time
of a machine that does nothing else. Memory is the sum of the tree's proportional set sizes (PSS),
sampled once a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

SAMPLE_S = 1.0


def tree_memory_mb(root: psutil.Process) -> float:
    """Return the proportional set size of a process and its descendants, in MiB."""
    total = 0
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error, OSError):
            total += process.memory_full_info().pss
    return total / 2**20


def ended_cpu_s() -> float:
    """Return the CPU seconds of the processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_campaign(seed: int, directory: Path, *, cold: bool, overrides: list[str]) -> dict[str, Any]:
    """Run one campaign and return its summary with wall time, CPU time and peak memory."""
    environment = dict(os.environ)
    if cold:
        environment["XDG_CACHE_HOME"] = str(directory / f"cache-{seed}")
    started, cpu = time.monotonic(), ended_cpu_s()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cli.main",
            "run",
            "--json",
            f"seed={seed}",
            f"run.dir={directory / f'seed-{seed}'}",
            *overrides,
        ],
        stdout=subprocess.PIPE,
        env=environment,
    )
    peak = 0.0
    root = psutil.Process(process.pid)
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            peak = max(peak, tree_memory_mb(root))
        time.sleep(SAMPLE_S)
    assert process.stdout is not None
    output = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"seed {seed}: agentrl run ended with exit code {process.returncode}")
    summary: dict[str, Any] = json.loads(output.splitlines()[-1])
    return {
        "seed": seed,
        "command_s": round(time.monotonic() - started, 1),
        "cpu_s": round(ended_cpu_s() - cpu, 1),
        "peak_mb": round(peak),
        **summary,
    }


def main() -> None:
    """Run the campaigns and print a table and one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cold", action="store_true", help="start from an empty cache")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, as for agentrl run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as directory:
        results = [
            run_campaign(seed, Path(directory), cold=options.cold, overrides=options.overrides)
            for seed in options.seeds
        ]
    table = Table(title="agentrl run" + (" from an empty cache" if options.cold else ""))
    for column in (
        "seed",
        "held-out before",
        "held-out after",
        "wall s",
        "CPU s",
        "peak MiB",
        "rollouts",
        "sampled",
        "trained",
    ):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            str(result["seed"]),
            f"{result['eval']['first']:.2f}",
            f"{result['eval']['last']:.2f}",
            f"{result['command_s']:.0f}",
            f"{result['cpu_s']:.0f}",
            f"{result['peak_mb']:.0f}",
            str(result["rollouts"]),
            str(result["tokens"]["sampled"]),
            str(result["tokens"]["trained"]),
        )
    Console(stderr=True).print(table)
    print(json.dumps({"benchmark": "campaign", "cold": options.cold, "results": results}))


if __name__ == "__main__":
    main()
