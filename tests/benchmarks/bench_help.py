"""Wall time of ``agentrl --help``: the best and the median of many starts, each a process of its
own.

python -m tests.benchmarks.bench_help
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

BUDGET_S = 0.25


def start_s() -> float:
    """Return the seconds one ``agentrl --help`` takes."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "cli.main", "--help"], check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> int:
    """Measure, print, and return 1 if the median is over the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=20)
    starts = parser.parse_args().starts
    start_s()  # the first one writes byte code
    times = [start_s() for _ in range(starts)]
    median = statistics.median(times)
    print(
        f"agentrl --help: median {median:.3f} s, best {min(times):.3f} s of {starts} "
        f"(budget {BUDGET_S} s)"
    )
    return int(median > BUDGET_S)


if __name__ == "__main__":
    raise SystemExit(main())
