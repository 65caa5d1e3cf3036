"""Where a plan meets what is real: each function wraps a part, or returns it as it is if there is
no plan. Called where the stack of a driver or a gateway is built, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from conf.schema import Faults
from runners.engines.client import HttpEngine
from runners.engines.sglang.workers import WorkerEngine
from runners.faults import clock
from runners.faults.engine import FaultyUpdates
from runners.faults.gateway import FaultyAdmin
from runners.faults.grader import FaultyGrader
from runners.faults.injection import Injection
from runners.faults.plan import FaultPlan
from runners.faults.sandbox import FaultyBackend
from runners.faults.store import FaultyMetrics, FaultyStore
from runners.faults.tools import FaultyHarness
from runners.observe.metrics import MetricsWriter
from runners.rollout import RolloutTools
from runners.sandboxes.contract import SandboxBackend
from runners.trajectory.store import RunStore


class Around:
    """The wrappers of one driver; without an injection, everything stays as it is."""

    def __init__(self, injection: Injection | None, store: RunStore) -> None:
        self._injection = injection
        self._store = store
        """The rollouts' own connection."""

    def backend(self, real: SandboxBackend) -> SandboxBackend:
        """Wrap the sandboxes, before a grader takes its own from them."""
        if self._injection is None:
            return real
        return FaultyBackend(real, self._injection, self._turns)

    def engine(self, real: HttpEngine | WorkerEngine) -> HttpEngine | WorkerEngine:
        """Wrap the driver's client of the engine, or that of each of its workers."""
        injection = self._injection
        if injection is None:
            return real
        if isinstance(real, HttpEngine):
            return FaultyUpdates(real, injection)
        return real.around(lambda worker: FaultyUpdates(worker, injection))

    def tools(self, real: RolloutTools) -> RolloutTools:
        """Wrap what attempts work with, all but the sandboxes."""
        injection = self._injection
        if injection is None:
            return real
        return replace(
            real,
            harness=FaultyHarness(real.harness, injection)
            if injection.plan.reaches("tool")
            else real.harness,
            grader=FaultyGrader(real.grader, injection),
            gateway=FaultyAdmin(real.gateway, injection),
            store=self._store,
        )

    def _turns(self, session_id: str) -> int:
        """Return how many turns of a session are durable."""
        asked = "SELECT count(*) FROM turn WHERE session_id = ?"
        return int(self._store.query(asked, (session_id,))[0][0])


@contextmanager
def driver_faults(section: Faults, store: RunStore) -> Iterator[Around]:
    """Yield what wraps a driver's parts."""
    plan = FaultPlan.of(section)
    if not plan:
        yield Around(None, store)
        return
    injection = Injection(plan, store)
    with FaultyStore.over(store, injection) as own:
        try:
            yield Around(injection, own)
        finally:
            clock.restore()


def metrics_faults(section: Faults, store: RunStore, real: MetricsWriter) -> MetricsWriter:
    """Wrap the writer of a run's metrics."""
    plan = FaultPlan.of(section)
    return FaultyMetrics(real, Injection(plan, store), store.run_dir) if plan else real
