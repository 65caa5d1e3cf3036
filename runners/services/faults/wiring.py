"""Put fault proxies around the parts of a driver, a worker or a gateway.

Invariant: without a plan every function here returns what it was given, and nothing outside this
folder asks whether there is a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from conf.sections.faults import FaultsConfig
from runners.engines.client import HttpEngine
from runners.engines.contract import Engine, ServedEngine
from runners.engines.sglang import WorkerEngine
from runners.gateway.client import GatewayAdmin
from runners.gateway.service import GatewayHooks
from runners.observe.figures import MetricsWriter
from runners.records.store import RunStore
from runners.sandboxes.contract import SandboxBackend
from runners.services.faults.boundaries import (
    CountTurns,
    note_request,
    wrap_backend,
    wrap_engine,
    wrap_gateway,
    wrap_grader,
    wrap_metrics,
    wrap_store,
    wrap_updates,
)
from runners.services.faults.native_tools import FaultyToolsHarness
from runners.services.faults.plan import Events, FaultPlan, Injection
from runners.services.faults.proxy import restore_clock

if TYPE_CHECKING:  # a gateway on its own has no attempts
    from runners.rollouts.contract import AttemptContext


class FaultWiring:
    """Wraps the parts of one driver or worker."""

    def __init__(self, injection: Injection, count_turns: CountTurns) -> None:
        self._injection = injection
        self._count_turns = count_turns

    def wrap_backend(self, real: SandboxBackend) -> SandboxBackend:
        """Wrap the sandboxes; before a grader takes its own from them."""
        return wrap_backend(real, self._injection, self._count_turns)

    def wrap_engine(self, real: ServedEngine) -> ServedEngine:
        """Wrap the driver's client of the engine, or the client of each of its workers.

        Weight updates are made to fail; nothing fails at an engine with fixed weights.
        """
        if not self._injection.plan:
            return real
        if isinstance(real, WorkerEngine):
            return real.wrap_workers(lambda worker: wrap_updates(worker, self._injection))
        return wrap_updates(real, self._injection) if isinstance(real, HttpEngine) else real

    def wrap_context(self, real: AttemptContext) -> AttemptContext:
        """Wrap everything that attempts work with except the sandboxes."""
        if not self._injection.plan:
            return real
        harness = real.harness
        if self._injection.plan.has_rules_for("tool"):
            harness = FaultyToolsHarness(harness, self._injection)
        return replace(
            real,
            harness=harness,
            grader=wrap_grader(real.grader, self._injection),
            gateway=wrap_gateway(real.gateway, self._injection),
        )

    def wrap_store(self, real: RunStore) -> RunStore:
        """Wrap the store that rollouts are written to."""
        return wrap_store(real, self._injection)


@contextmanager
def driver_faults(section: FaultsConfig, store: RunStore) -> Iterator[FaultWiring]:
    """Yield what wraps a driver's parts."""

    async def count_turns(session_id: str) -> int:
        query = "SELECT count(*) FROM turn WHERE session_id = ?"
        return int(store.query(query, (session_id,))[0][0])

    try:
        yield FaultWiring(Injection(FaultPlan.from_config(section), store), count_turns)
    finally:
        restore_clock()


@contextmanager
def worker_faults(
    section: FaultsConfig, events: Events, gateway: GatewayAdmin
) -> Iterator[FaultWiring]:
    """Yield what wraps a worker's parts; the store, and its faults, are the driver's."""

    async def count_turns(session_id: str) -> int:
        return int((await gateway.stats(session_id))["turns"])

    try:
        yield FaultWiring(Injection(FaultPlan.from_config(section), events), count_turns)
    finally:
        restore_clock()


def metrics_faults(section: FaultsConfig, store: RunStore, real: MetricsWriter) -> MetricsWriter:
    """Wrap the writer of a run's metrics."""
    injection = Injection(FaultPlan.from_config(section), store)
    return wrap_metrics(real, injection, store.run_dir)


def choose_gateway_module(
    section: FaultsConfig, settings: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the module that serves a run's gateway, and its settings."""
    if not FaultPlan.from_config(section):
        return "runners.gateway", settings
    return "runners.services.faults", {**settings, "faults": section.model_dump(mode="json")}


def make_gateway_hooks(section: FaultsConfig) -> GatewayHooks:
    """Return the parts of a gateway: its engine fails, and its clients go away."""
    plan = FaultPlan.from_config(section)
    if not plan:
        return GatewayHooks()

    def wrap(real: Engine, turn_log: Events) -> Engine:
        return wrap_engine(real, Injection(plan, turn_log))

    return GatewayHooks(wrap_engine=wrap, wrap_handler=note_request)


def pop_gateway_hooks(settings: dict[str, Any]) -> GatewayHooks:
    """Take ``faults`` out of a gateway's settings and return the parts that they make."""
    section: FaultsConfig = TypeAdapter(FaultsConfig).validate_python(settings.pop("faults"))
    return make_gateway_hooks(section)
