"""Execute an evaluation or a calibration with a store, a driver and progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from conf.schema import Config
from runners.campaigns.evaluation.benchmarks import Benchmark
from runners.observe.live import Progress
from runners.records.store import RunStore
from runners.services.driver import RunDriver, RunEnd, open_run


@dataclass(frozen=True, slots=True)
class Execution:
    """Objects that a measurement works with."""

    benchmark: Benchmark
    config: Config
    store: RunStore
    driver: RunDriver
    progress: Progress


class Measurement(Protocol):
    """A measurement that can be executed once."""

    async def work(self) -> None:
        """Run the rollouts or gradings that are still missing; raises Interrupted, AgentrlError."""
        ...

    def write(self) -> None:
        """Write the results; called however ``work`` ends. Raises StoreError."""
        ...


M = TypeVar("M", bound=Measurement)


def execute(
    make: Callable[[Execution], M],
    benchmark: Benchmark,
    config: Config,
    run_dir: Path,
    *,
    resume: bool,
) -> tuple[M, RunEnd]:
    """Execute or resume a measurement in ``run_dir``; return it and its end.

    Raises AgentrlError only if it cannot start; later errors are part of the end.
    """
    with open_run(config, run_dir, resume=resume) as store:
        if resume:
            store.verify_arrays()
        progress = Progress(store.run_dir.name, steps=0)
        driver = RunDriver(config, store, progress, benchmark=benchmark.name)
        measurement = make(Execution(benchmark, config, store, driver, progress))
        return measurement, driver.run(measurement.work, measurement.write)
