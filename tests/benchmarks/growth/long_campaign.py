"""What a step costs the driver over the steps before it: a whole campaign of the tiny policy."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import psutil

from tests.benchmarks.bench_gateway import cpu_s
from tests.benchmarks.growth.curve import Curve

SMALL = ("scenario=linear", "run.tasks_per_step=2", "run.rollouts_per_task=4", "run.eval_tasks=2")
"""Steps of eight rollouts, so that there are many of them in little time."""
AROUND = 8
"""Steps whose median is a point."""


def measure_campaign(directory: Path, steps: Sequence[int]) -> list[Curve]:
    """Return CPU seconds of the driver's process per step, and its memory, over the steps done.

    The driver's process has the local trainer in it, whose work is the same in every step.
    """
    run_dir = directory / "campaign"
    command = [sys.executable, "-m", "cli.main", "run", *SMALL, f"run.steps={max(steps)}"]
    with (directory / "campaign.log").open("w") as log:
        driver = subprocess.Popen([*command, f"run.dir={run_dir}"], stdout=log, stderr=log)
    process, samples = psutil.Process(driver.pid), list[tuple[float, float]]()
    try:
        while driver.poll() is None:
            lines = run_dir / "metrics.jsonl"
            done = lines.read_bytes().count(b"\n") if lines.exists() else 0
            if done > len(samples):
                memory = process.memory_info().rss / 1e6
                samples += [(cpu_s(process), memory)] * (done - len(samples))
            time.sleep(0.05)
    finally:
        driver.terminate()
        driver.wait()
    costs = [after[0] - before[0] for before, after in pairwise(samples)]
    cpu, memory_mb = [], []
    for step in steps:
        cpu.append((step, statistics.median(costs[max(0, step - AROUND) : step])))
        memory_mb.append((step, samples[min(step, len(samples)) - 1][1]))
    return [
        Curve("driver", "CPU s per step", "steps done", 0, tuple(cpu)),
        Curve("driver", "memory, MB", "steps done", 0, tuple(memory_mb)),
    ]
