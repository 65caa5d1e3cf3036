"""What reading a run's status costs, as a job's driver does every ten seconds.

python -m tests.benchmarks.bench_status --rollouts 10000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from runners.observe.live.status import read_store_status
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout

STEP_ROLLOUTS = 256
METRICS = 80
LOG = "tests/test_calc.py::test_add PASSED\n" * 170
"""Of a grading, 6 kB: what lies beside the counted columns."""


def fill(store: RunStore, rollouts: int) -> None:
    """Write steps of graded rollouts."""
    for number in range(rollouts):
        step, place = divmod(number, STEP_ROLLOUTS)
        record = a_rollout(f"train-{step + 1:06}-{place // 8:02}-{place % 8:02}")
        store.put_rollout(replace(record, verdict={**(record.verdict or {}), "log": LOG}))
    for step in range(1, rollouts // STEP_ROLLOUTS + 1):
        store.begin_step(step, ["task"])
        store.finish_step(step, {f"metric/{name}": step / (name + 1) for name in range(METRICS)})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rollouts", type=int, default=10_000)
    rollouts = parser.parse_args().rollouts
    with tempfile.TemporaryDirectory() as folder, RunStore.create(Path(folder), CONFIG) as store:
        fill(store, rollouts)
        took = []
        for _ in range(5):
            began = time.process_time()
            read_store_status(store)
            took.append(1000 * (time.process_time() - began))
    print(f"{rollouts:,} rollouts: {min(took):.1f} ms of CPU time, the best of {len(took)}")


if __name__ == "__main__":
    main()
