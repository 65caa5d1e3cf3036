"""How costs grow with the work: curves of gateway, store, report, dump and driver, with exponents.

    python -m tests.benchmarks.bench_growth --plot docs/performance/growth.png
    python -m tests.benchmarks.bench_growth --only gateway --quick

Each line is a cost at the smallest and the greatest size of the work, and the exponent of the curve
between them: 0 where a piece costs the same however much there is, 1 where the whole costs in
proportion. ``limit`` is the exponent of work that is done once for what is new.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop

from tests.benchmarks.growth.curve import Curve, plot_curves
from tests.benchmarks.growth.gateway_sessions import measure_history, measure_sessions
from tests.benchmarks.growth.long_campaign import measure_campaign
from tests.benchmarks.growth.stored_runs import measure_stored_runs


def gateway(directory: Path, *, quick: bool) -> Iterator[Curve]:
    """Yield the gateway's curves."""
    yield uvloop.run(measure_history(directory, (8, 16, 32) if quick else (8, 16, 32, 64, 128)))
    yield from uvloop.run(measure_sessions(directory, (4, 16) if quick else (4, 16, 64)))


def store(directory: Path, *, quick: bool) -> Iterator[Curve]:
    """Yield the curves of the store and of what reads it."""
    return measure_stored_runs(directory, (300, 600) if quick else (500, 1000, 2000))


def driver(directory: Path, *, quick: bool) -> Iterator[Curve]:
    """Yield the driver's curves."""
    yield from measure_campaign(directory, (4, 8) if quick else (4, 8, 16))


WIDTHS = (10, 22, 21, 17, 17, 8, 5)
"""Of the table's columns."""
PARTS: dict[str, Callable[..., Iterator[Curve]]] = {
    each.__name__: each for each in (gateway, store, driver)
}


def main() -> None:
    """Measure and print; plot if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="two or three small sizes")
    parser.add_argument("--plot", type=Path, help="PNG to write")
    arguments = parser.parse_args()
    curves: list[Curve] = []
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as directory:
            for curve in PARTS[name](Path(directory), quick=arguments.quick):
                if not curves:
                    print(" | ".join(map(str.rjust, curve.row(), WIDTHS)))
                curves.append(curve)
                print(" | ".join(map(str.rjust, curve.row().values(), WIDTHS)), flush=True)
    if arguments.plot is not None:
        plot_curves(curves, arguments.plot)


if __name__ == "__main__":
    main()
