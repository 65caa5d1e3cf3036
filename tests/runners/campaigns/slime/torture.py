"""Kill the parts of a slime job, one in each step, and print what became of its rollouts.

    git clone https://github.com/THUDM/slime SLIME && git -C SLIME checkout 624b824
    python -m tests.runners.campaigns.slime.torture DIR SLIME|- MODE [VICTIM…]
    python -m tests.runners.campaigns.slime.torture DIR SLIME|- MODE faults

MODE: none, step or stream. VICTIM: manager, gateway, engine, worker, node; all of them by default.
With ``faults`` nothing is killed: 5 % of the sandboxes and gradings fail, in three steps of 4 × 8.
slime's own training loop and ``RolloutManager`` run on two nodes of a real Ray with a stand-in for
training; with - instead of SLIME stand-ins of both, which MODE none has only. Exits with 1 if a
rollout is lost, or in two batches.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.fakes.slime_torture import Fate, torture

VICTIMS = ("manager", "gateway", "engine", "worker", "node")
FAULTS = """
seed: 3
rules:
  - {where: sandbox_boot, when: {probability: 0.025}, what: error}
  - {where: grade, when: {probability: 0.025}, what: error}
"""
LARGER = (
    *("run.tasks_per_step=4", "run.rollouts_per_task=8", "executor.rollouts_per_node=4"),
    *("rollout.concurrency=8", "faults=file"),
)


def run_faults(root: Path, slime: Path | None, mode: str) -> int:
    """Return the exit code of a job in which nothing is killed and attempts fail."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "plan.yaml").write_text(FAULTS)
    more = (f"run.overlap={mode}", *LARGER, f"faults.path={root / 'plan.yaml'}")
    with torture(root, *more, steps=3, slime=slime) as job:
        fate = job.judge(job.run(()))
    return report(fate, 3)


def run(root: Path, slime: Path | None, mode: str, victims: tuple[str, ...]) -> int:
    """Return the exit code."""
    with torture(root, f"run.overlap={mode}", steps=len(victims) + 1, slime=slime) as job:
        fate = job.judge(job.run(victims))
    print(f"killed {', '.join(job.killed)}")
    missing = set(victims) - set(job.killed)
    return report(fate, len(victims) + 1) or int(bool(missing))


def report(fate: Fate, steps: int) -> int:
    """Print what became of a job's rollouts; return 1 if one is lost or in two batches."""
    print(f"{fate.executions} executions of {steps} steps")
    print(f"{fate.planned} rollouts: {len(fate.lost)} lost, {len(fate.duplicated)} duplicated")
    print(f"{fate.attempts} attempts, {fate.wasted:.1%} in no batch: {dict(fate.failed)}")
    print(f"graded, and made anew: {fate.repeated}")
    return int(bool(fate.lost or fate.duplicated))


if __name__ == "__main__":
    # So that what it has started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root, slime, mode, *victims = sys.argv[1:]
    found = None if slime == "-" else Path(slime).resolve()
    place = Path(root).resolve()
    if victims == ["faults"]:
        sys.exit(run_faults(place, found, mode))
    sys.exit(run(place, found, mode, tuple(victims) or VICTIMS))
