"""Run random hostile programs in sandboxes; count their outcomes, and measure the driver's memory.

    python -m tests.benchmarks.bench_hostile
    python -m tests.benchmarks.bench_hostile --count 50 --isolation unshare --seed 7

The same number of honest programs runs first, in a process of its own, as the hostile ones do. The
program fails if an outcome is not documented, if anything is left, or if the driver of the hostile
programs has more than 1.5 times the memory of the honest one's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from conf.sections.sandbox import LocalSandboxConfig
from runners.records.outcome import OutcomeCode
from runners.sandboxes.local.backend import SHARED_MEMORY, LocalBackend
from runners.tasks.bugfix import build
from tests.fakes.hostile_programs import make_program
from tests.fakes.hostile_run import find_left, run_programs

HONEST = "for f in *.py */*.py; do sed -i 's/return /return  /' $f; done; echo note > note.txt"
MEMORY_RATIO = 1.5


def measure(kind: str, count: int, isolation: str, seed: int) -> dict[str, object]:
    """Run the programs of one kind in this process; return outcomes, what is left, and memory."""
    programs = [HONEST if kind == "honest" else make_program(seed + n) for n in range(count)]
    settings = {
        **{"kind": "local", "isolation": isolation, "memory_mb": 1024, "processes": 64},
        **{"file_mb": 64, "cpu_s": 20, "warm": 2},
    }
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        task = build(root / "tasks", seed=0, train=1, held_out=0)[0]
        backend = LocalBackend(LocalSandboxConfig.model_validate(settings), root / "sandboxes")

        async def run() -> dict[str, int]:
            try:
                return dict(await run_programs(backend, task, programs))
            finally:
                await backend.close()

        outcomes = asyncio.run(run())
        left = find_left(root, SHARED_MEMORY) + [path.name for path in root.glob("sandboxes*")]
    return {
        "outcomes": outcomes,
        "left": left,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "seconds": round(time.monotonic() - started, 1),
    }


def find_undocumented(outcomes: dict[str, int]) -> list[str]:
    """Return the outcomes that are no policy's or budget's."""
    documented = {str(code) for code in OutcomeCode if code.outcome_class in ("policy", "budget")}
    return [name for name, number in outcomes.items() if number and name not in documented]


def main() -> None:
    """Print both measurements as JSON lines, and the ratio of the memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--isolation", choices=["bubblewrap", "unshare"], default="bubblewrap")
    parser.add_argument("--kind", choices=["honest", "hostile"])
    asked = parser.parse_args()
    if asked.kind:
        print(json.dumps(measure(asked.kind, asked.count, asked.isolation, asked.seed)))
        return
    figures = {}
    for kind in ("honest", "hostile"):
        command = [sys.executable, "-m", "tests.benchmarks.bench_hostile", "--kind", kind]
        command += [f"--count={asked.count}", f"--seed={asked.seed}"]
        command += [f"--isolation={asked.isolation}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures[kind] = json.loads(done.stdout.splitlines()[-1])
        print(kind, json.dumps(figures[kind]), flush=True)
    ratio = figures["hostile"]["memory_mb"] / figures["honest"]["memory_mb"]
    print(f"memory: {ratio:.2f} of an honest run")
    faults = find_undocumented(figures["hostile"]["outcomes"]) + figures["hostile"]["left"]
    if faults or ratio > MEMORY_RATIO:
        sys.exit(f"not held: {faults}")


if __name__ == "__main__":
    main()
