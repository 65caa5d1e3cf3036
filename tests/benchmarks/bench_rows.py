"""CPU time and peak memory to read a large file of rows.

Rows have patches of 2 to 20 kB, hidden tests of 1 to 8 kB and up to 80 named tests. They are read
by a process of their own.

python -m tests.benchmarks.bench_rows
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runners.tasks.sets.dataset_report import read_dataset
from tests.runners.tasks.dataset_rows import config

WORDS = [f"name_{number}" for number in range(4000)]


def make_diff(random_: random.Random, path: str, size: float) -> str:
    """Return a diff of about so many bytes."""
    line = f"+    {' '.join(random_.choices(WORDS, k=8))}"
    lines = [line] * (int(size) // len(line))
    header = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    return header + f"@@ -1,0 +1,{len(lines)} @@\n" + "\n".join(lines) + "\n"


def write_rows(file: Path, number: int) -> None:
    """Write rows in SWE-bench's fields, their repository beside them."""
    random_ = random.Random(1)
    (file.parent / "repo").mkdir()
    with file.open("w") as lines:
        for index in range(number):
            tests = f"tests/test_{index % 97}.py"
            passing = [f"{tests}::test_{n}" for n in range(3, random_.randrange(4, 80))]
            row = {
                "instance_id": f"acme__lib{index % 500}-{index}",
                "repo": f"acme/lib{index % 500}",
                "repo_path": "repo",
                "base_commit": f"{index % 5000:040x}",
                "patch": make_diff(random_, "lib.py", random_.triangular(2000, 20000, 3000)),
                "test_patch": make_diff(random_, tests, random_.triangular(1000, 8000, 2000)),
                "problem_statement": "It fails. " * 200,
                "FAIL_TO_PASS": json.dumps([f"{tests}::test_{n}" for n in range(3)]),
                "PASS_TO_PASS": json.dumps(passing),
            }
            lines.write(json.dumps(row) + "\n")


def read(path: str) -> None:
    """Read a file; print CPU seconds, and bytes of peak memory over those before."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    report = read_dataset(config(path), path)
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([seconds, peak << 10, len(report.tasks), len(report.faults)]))


def main() -> int:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--read", metavar="FILE")
    given = parser.parse_args()
    if given.read:
        read(given.read)
        return 0
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-") as scratch:
        file = Path(scratch) / "rows.jsonl"
        write_rows(file, given.rows)
        size = file.stat().st_size
        print(f"{given.rows:,} rows, {size / 1e6:,.0f} MB")
        command = [sys.executable, "-m", "tests.benchmarks.bench_rows", "--read", str(file)]
        done = subprocess.run(command, check=True, capture_output=True)
        seconds, peak, tasks, faults = json.loads(done.stdout)
        assert (tasks, faults) == (given.rows, 0)
        print(f"{seconds:.1f} s of CPU, peak memory {peak / size:.2f} of the file")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
