"""Kill the parts of a slime job, one in each step, and print what became of its rollouts.

    git clone https://github.com/THUDM/slime SLIME && git -C SLIME checkout 624b824
    python -m tests.runners.slime.torture DIR SLIME|- MODE [VICTIM…]

MODE: none, step or stream. VICTIM: manager, gateway, engine, worker, node; all of them by default.
slime's own training loop and ``RolloutManager`` run on two nodes of a real Ray with a stand-in for
training; with - instead of SLIME stand-ins of both, which MODE none has only. Exits with 1 if a
rollout is lost, or in two batches.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.fakes.slime_torture import torture

VICTIMS = ("manager", "gateway", "engine", "worker", "node")


def run(root: Path, slime: Path | None, mode: str, victims: tuple[str, ...]) -> int:
    """Return the exit code."""
    with torture(root, f"run.overlap={mode}", steps=len(victims) + 1, slime=slime) as job:
        fate = job.judge(job.run(victims))
    print(
        f"killed {', '.join(job.killed)}; {fate.executions} executions of {len(victims) + 1} steps"
    )
    print(f"{fate.planned} rollouts: {len(fate.lost)} lost, {len(fate.duplicated)} duplicated")
    print(f"{fate.attempts} attempts, {fate.wasted:.1%} in no batch: {dict(fate.failed)}")
    print(f"graded, and made anew: {fate.repeated}")
    missing = set(victims) - set(job.killed)
    return int(bool(fate.lost or fate.duplicated or missing))


if __name__ == "__main__":
    # So that what it has started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root, slime, mode, *victims = sys.argv[1:]
    found = None if slime == "-" else Path(slime).resolve()
    sys.exit(run(Path(root).resolve(), found, mode, tuple(victims) or VICTIMS))
