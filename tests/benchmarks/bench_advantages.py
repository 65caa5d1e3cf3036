"""Run a campaign with each estimator of advantages, several at once, and compare them.

    python -m tests.benchmarks.bench_advantages runs/advantages --parallel 8 --seeds 0 1

Every campaign has two cores of its own and as many threads, and the same rewards: the penalty for
malformed calls is what ``gdpo`` allows. ``KEY=VALUE`` changes all of them. At the end
``agentrl compare`` prints one table, with the interval of each run and, from two seeds on, of each
estimator. Campaigns that are there already are not run again, so a sweep may be done in parts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from queue import SimpleQueue

ESTIMATORS = {
    "grpo": ["trainer.advantage=grpo"],
    "dr_grpo": ["trainer.advantage=dr_grpo"],
    "rloo": ["trainer.advantage=rloo"],
    "turn": ["trainer.advantage=rloo", "trainer.credit=turn"],
    "max_rl": ["trainer.advantage=max_rl"],
    "reinforce_pp": ["trainer.advantage=reinforce_pp"],
    "reinforce_pp_baseline": ["trainer.advantage=reinforce_pp_baseline"],
    "gdpo": ["trainer.advantage=gdpo"],
}
COMMON = ["reward.malformed_penalty=0.3", "trainer.threads=2", "engine.threads=2"]
CORES = 2
"""Of each campaign."""


def run_campaign(name: str, seed: int, out: Path, cores: SimpleQueue[int], more: list[str]) -> int:
    """Run one campaign on two free cores; return its exit code."""
    place = out / f"{name}-seed-{seed}"
    if (place / "report.html").exists():
        return 0
    first = cores.get()
    settings = [*COMMON, *ESTIMATORS[name], f"seed={seed}", f"run.dir={place}", *more]
    log = place.with_suffix(".log")
    with log.open("w") as output:
        code = subprocess.run(
            [sys.executable, "-m", "cli.main", "run", *settings],
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, _cores_from(first)),
            check=False,
        ).returncode
    cores.put(first)
    print(f"{name}, seed {seed}: exit code {code}", file=sys.stderr)
    return code


def _cores_from(first: int) -> Sequence[int]:
    own = sorted(os.sched_getaffinity(0))
    return [own[index % len(own)] for index in range(first, first + CORES)]


def main() -> None:
    """Run the campaigns, print their comparison; exit with the highest exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="directory of the runs")
    parser.add_argument("more", nargs="*", metavar="KEY=VALUE", help="of all campaigns")
    parser.add_argument("--only", nargs="+", choices=list(ESTIMATORS), default=list(ESTIMATORS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--parallel", type=int, default=1, help="campaigns at once")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cores: SimpleQueue[int] = SimpleQueue()
    for number in range(options.parallel):
        cores.put(number * CORES)
    campaigns = list(product(options.seeds, options.only))
    with ThreadPoolExecutor(options.parallel) as pool:
        codes = list(
            pool.map(
                lambda each: run_campaign(each[1], each[0], options.out, cores, options.more),
                campaigns,
            )
        )
    found = [str(options.out / f"{name}-seed-{seed}") for seed, name in campaigns]
    stored = [place for place in found if (Path(place) / "store.sqlite").exists()]
    if len(stored) > 1:
        subprocess.run([sys.executable, "-m", "cli.main", "compare", *stored], check=False)
    raise SystemExit(max(codes))


if __name__ == "__main__":
    main()
