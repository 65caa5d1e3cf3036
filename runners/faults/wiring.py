"""Where a plan meets what is real: each function wraps a part, or returns it as it is if there is
no plan. Called where the stack of a driver or a gateway is built, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from conf.sections.faults import FaultsConfig
from runners.engines.client import HttpEngine
from runners.engines.sglang.workers import WorkerEngine
from runners.faults import clock
from runners.faults.engine import FaultyUpdates
from runners.faults.gateway import FaultyAdmin
from runners.faults.grader import FaultyGrader
from runners.faults.injection import Events, Injection
from runners.faults.plan import FaultPlan
from runners.faults.sandbox import FaultyBackend
from runners.faults.store import FaultyMetrics, FaultyStore
from runners.faults.tools import FaultyHarness
from runners.gateway.client import GatewayAdmin
from runners.observe.metrics import MetricsWriter
from runners.rollouts.context import AttemptContext
from runners.sandboxes.contract import SandboxBackend
from runners.store.run_store import RunStore

Turns = Callable[[str], Awaitable[int]]
"""Returns how many turns of a session are durable."""


class FaultWiring:
    """The wrappers of one driver or worker; without an injection, everything stays as it is."""

    def __init__(
        self, injection: Injection | None, turns: Turns, store: RunStore | None = None
    ) -> None:
        self._injection = injection
        self._turns = turns
        self._store = store
        """The rollouts' own connection, in a driver."""

    def wrap_backend(self, real: SandboxBackend) -> SandboxBackend:
        """Wrap the sandboxes, before a grader takes its own from them."""
        if self._injection is None:
            return real
        return FaultyBackend(real, self._injection, self._turns)

    def wrap_engine(self, real: HttpEngine | WorkerEngine) -> HttpEngine | WorkerEngine:
        """Wrap the driver's client of the engine, or that of each of its workers."""
        injection = self._injection
        if injection is None:
            return real
        if isinstance(real, HttpEngine):
            return FaultyUpdates(real, injection)
        return real.wrap_workers(lambda worker: FaultyUpdates(worker, injection))

    def wrap_context(self, real: AttemptContext) -> AttemptContext:
        """Wrap everything that attempts work with except the sandboxes."""
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
        )

    def wrap_store(self, real: RunStore) -> RunStore:
        """Return the connection that rollouts are written with."""
        return real if self._store is None else self._store


@contextmanager
def driver_faults(section: FaultsConfig, store: RunStore) -> Iterator[FaultWiring]:
    """Yield what wraps a driver's parts."""
    plan = FaultPlan.of(section)

    async def turns(session_id: str) -> int:
        asked = "SELECT count(*) FROM turn WHERE session_id = ?"
        return int(store.query(asked, (session_id,))[0][0])

    if not plan:
        yield FaultWiring(None, turns)
        return
    injection = Injection(plan, store)
    with FaultyStore.over(store, injection) as own:
        try:
            yield FaultWiring(injection, turns, own)
        finally:
            clock.restore()


@contextmanager
def worker_faults(
    section: FaultsConfig, events: Events, gateway: GatewayAdmin
) -> Iterator[FaultWiring]:
    """Yield what wraps a worker's parts; the store, and what happens to it, are the driver's."""
    plan = FaultPlan.of(section)

    async def turns(session_id: str) -> int:
        return int((await gateway.stats(session_id))["turns"])

    try:
        yield FaultWiring(Injection(plan, events) if plan else None, turns)
    finally:
        clock.restore()


def metrics_faults(section: FaultsConfig, store: RunStore, real: MetricsWriter) -> MetricsWriter:
    """Wrap the writer of a run's metrics."""
    plan = FaultPlan.of(section)
    return FaultyMetrics(real, Injection(plan, store), store.run_dir) if plan else real
