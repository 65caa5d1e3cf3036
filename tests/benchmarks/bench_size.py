"""The size of a job: what many sandboxes cost driver, gateway and store, and what breaks first.

    python -m tests.benchmarks.bench_size
    python -m tests.benchmarks.bench_size --sandboxes 64 --turns 2 4 --large 128

Real driver (rollout pool, ``executor=ray``'s side of it, store), real gateway with replicas, real
workers of 16 nodes in one process beside an engine that answers at once; sandboxes are empty,
agents send requests as long as recorded ones. A small load of few and of many turns gives the cost
of a turn and of a rollout; a large one shows that all sandboxes are served at once. The second
table is the same on paper, for a job with real engines.

CPU times of nodes, agents and engine are not counted, though they share the machine.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import uvloop

from tests.benchmarks.size.agent import RECORDED_TURNS
from tests.benchmarks.size.job import Load, Measured, measure
from tests.benchmarks.size.plan import DAY_S, Size, derive_costs, list_needs
from tests.benchmarks.size.writers import measure_writers

NODES = 16
LARGE_TURNS = 4


def describe(found: Measured) -> dict[str, str]:
    """Return a load as a row of the first table."""
    load, gateway = found.load, found.gateway
    rollouts = load.sandboxes
    return {
        "sandboxes": f"{rollouts:,}",
        "turns": str(load.turns),
        "replicas": str(load.replicas),
        "s here": f"{found.seconds:.0f}",
        "driver ms": f"{1000 * found.driver.cpu[0] / rollouts:.1f}",
        "its MB": f"{found.driver.memory_mb:.0f}",
        "its files": str(found.driver.descriptors),
        "gateway ms": f"{1000 * sum(gateway.cpu) / rollouts:.0f}",
        "busiest ms": f"{1000 * max(gateway.cpu) / rollouts:.0f}",
        "MB each": f"{gateway.memory_mb / rollouts:.2f}",
        "most files": str(gateway.descriptors),
        "stored kB": f"{1000 * found.stored_mb / rollouts:.0f}",
    }


def measure_all(loads: Iterable[Load], found: list[Measured]) -> Iterator[Measured]:
    """Measure each load in a directory of its own, and add it to ``found``."""
    for load in loads:
        with tempfile.TemporaryDirectory() as directory:
            found.append(uvloop.run(measure(load, Path(directory))))
        yield found[-1]


def print_rows(rows: Iterable[Mapping[str, str]], first: int = 9, others: int = 9) -> None:
    """Print a table as it comes; ``first``, ``others``: least widths of its columns."""
    for number, row in enumerate(rows):
        least = [first, *[others] * (len(row) - 1)]
        widths = [max(len(name), width) for name, width in zip(row, least, strict=True)]
        if not number:
            print(" | ".join(map(str.rjust, row, widths)))
        print(" | ".join(map(str.rjust, row.values(), widths)), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sandboxes", type=int, default=128, help="of the small loads")
    parser.add_argument("--turns", type=int, nargs=2, default=(4, 12), help="of the small loads")
    parser.add_argument("--large", type=int, default=1024, help="sandboxes of the large load")
    parser.add_argument("--replicas", type=int, default=4, help="of the large load's gateway")
    wanted = parser.parse_args()
    few, many = wanted.turns
    loads = [
        Load(wanted.sandboxes, few, NODES, 1),
        Load(wanted.sandboxes, many, NODES, 1),
        Load(wanted.large, LARGE_TURNS, NODES, wanted.replicas),
    ]
    found: list[Measured] = []
    print_rows(describe(each) for each in measure_all(loads, found))
    with tempfile.TemporaryDirectory() as directory:
        writes = [measure_writers(Path(directory) / str(n), n) for n in (1, wanted.replicas)]
    print(f"turns a second into a store: {writes[0]:,.0f}; of {wanted.replicas}: {writes[1]:,.0f}")
    costs = derive_costs(found, writes[1])
    for name, value in asdict(costs).items():
        print(f"  {name:>20} {value:.3g}")
    size = Size(replicas=wanted.replicas)
    print(
        f"\n{size.sandboxes:,} sandboxes on {NODES} nodes, {RECORDED_TURNS} turns of "
        f"{size.turn_s:g} s each: {size.turns_per_s:.0f} turns a second, "
        f"{DAY_S * size.rollouts_per_s:,.0f} rollouts of {size.tokens:,.0f} tokens a day, "
        f"{size.batch:,} in a batch"
    )
    print_rows((need.row(size.sandboxes) for need in list_needs(costs, size)), 34, 16)


if __name__ == "__main__":
    main()
