"""What a step costs the driver over the steps before it: a long campaign of a random policy.

Engine, gateway, sandboxes and trainer are real; the policy samples noise, so no time goes into
bootstrapping one, and its rollouts are short.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import psutil

from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from tests.benchmarks.benched_gateway import cpu_s
from tests.benchmarks.growth.curve import Curve
from tests.fakes.tiny_model import write_tiny_model

SMALL = (
    *("scenario=linear", "run.tasks_per_step=2", "run.rollouts_per_task=4", "run.eval_tasks=0"),
    *("harness.max_turns=3", "sampling.max_new_tokens=48"),
)
"""Steps of eight short rollouts, so that there are many of them in little time."""
AROUND = 4
"""Steps whose median is a point."""


def measure_campaign(directory: Path, steps: Sequence[int]) -> list[Curve]:
    """Return CPU seconds of the driver's process per step, and its memory, over the steps done.

    The driver's process has the local trainer in it, whose work is the same in every step.
    """
    run_dir, policy = directory / "campaign", directory / "policy"
    write_tiny_tokenizer(policy)
    write_tiny_model(policy, vocab_size=tiny_tokenizer().get_vocab_size())
    command = [sys.executable, "-m", "cli.main", "run", *SMALL, f"run.steps={max(steps)}"]
    command += [f"model.path={policy}", f"model.tokenizer={policy}", f"run.dir={run_dir}"]
    log_file = directory / "campaign.log"
    with log_file.open("w") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log)
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
    if len(samples) < max(steps) - 1:
        raise RuntimeError(f"the campaign ended early: {log_file.read_text()[-2000:]}")
    costs = [after[0] - before[0] for before, after in pairwise(samples)]
    cpu, memory_mb = [], []
    for step in steps:
        cpu.append((step, statistics.median(costs[max(0, step - AROUND) : step])))
        memory_mb.append((step, samples[min(step, len(samples)) - 1][1]))
    return [
        Curve("driver", "CPU s per step", "steps done", 0, tuple(cpu)),
        Curve("driver", "memory, MB", "steps done", 0, tuple(memory_mb)),
    ]
