"""What a terminal waits for: ``agentrl --help`` and the answer to a TAB, each a process of its own.

    python -m tests.benchmarks.bench_help

Wall time of the help; CPU seconds (user and system) of a TAB, with Python's byte-code caches and
without any, as on the first TAB after an installation.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from cli.complete_words import VARIABLE
from tests.fakes.records import example_run

BUDGET_S = 0.25
TAB_BUDGET_S = 0.3
LINES = ("agentrl run engine=sg", "agentrl rollouts RUN --only=un", "agentrl rollouts RUN train-")


def help_s() -> float:
    """Return the wall seconds of one ``agentrl --help``."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "cli.main", "--help"], check=True, capture_output=True)
    return time.perf_counter() - started


def tab_s(line: str, environment: Mapping[str, str]) -> float:
    """Return the CPU seconds of the process that answers a TAB at the end of a line."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "cli.main"],
        env={**os.environ, VARIABLE: line, **environment},
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(name: str, once: Callable[[], float], starts: int, budget_s: float) -> bool:
    """Measure and print; return whether the median is within the budget."""
    once()  # the first one writes byte code
    times = [once() for _ in range(starts)]
    median = statistics.median(times)
    print(
        f"{name}: median {median:.3f} s, best {min(times):.3f} s of {starts} (budget {budget_s} s)"
    )
    return median <= budget_s


def main() -> int:
    """Measure, print, and return 1 if a median is over its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=20)
    starts = parser.parse_args().starts
    kept = [measure("agentrl --help", help_s, starts, BUDGET_S)]
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as folder:
        example_run(Path(folder) / "run").close()
        cached = {"PYTHONDONTWRITEBYTECODE": ""}
        none = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": f"{folder}/nothing"}
        for words, environment in (("", cached), (", no byte code", none)):
            for line in LINES:
                typed = line.replace("RUN", f"{folder}/run")
                kept.append(
                    measure(
                        f"TAB, CPU{words}: {line}",
                        partial(tab_s, typed, environment),
                        starts,
                        TAB_BUDGET_S,
                    )
                )
    return int(not all(kept))


if __name__ == "__main__":
    raise SystemExit(main())
