"""What a job of some size needs, on paper: measured costs times the rates of its rollouts.

Each line is a resource, what the job takes of it, what there is, and the number of sandboxes at
which nothing is left. The least of them is what breaks first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.benchmarks.size.agent import FIRST_BYTES, GROWN_BYTES, RECORDED_TURNS
from tests.benchmarks.size.job import Measured

DAY_S = 86_400
BYTES_PER_TOKEN = 4
ROUTING_BYTES = 92 * 8
"""Of a token of GLM-4.7: 92 layers, 8 of 160 experts, a byte each."""
BUSY = 0.7
"""Share of a core beyond which turns wait for each other."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a turn and a rollout cost; a rollout without its turns."""

    loop_turn_ms: float
    """CPU time of the gateway's process that serves the session."""
    loop_rollout_ms: float
    text_rollout_ms: float
    """CPU time of its processes for long texts."""
    session_mb: float
    """Memory of the gateway for an open session."""
    session_descriptors: float
    driver_rollout_ms: float
    driver_idle: float
    """Share of a core, however many rollouts there are."""
    convert_rollout_ms: float
    """CPU time of the driver to make slime's samples of it, of all its turns."""
    sample_mb: float
    """Memory of these samples without routing."""
    stored_turn_kb: float
    stored_rollout_kb: float
    writes_per_s: float
    """Turns that one store takes from several processes."""


@dataclass(frozen=True, slots=True)
class Size:
    """A job; what is not measured here is assumed, and printed."""

    sandboxes: int = 1024
    replicas: int = 4
    turns: int = RECORDED_TURNS
    """Of a rollout."""
    turn_s: float = 20.0
    """From one turn of a sandbox to its next: the engine's answer and the tool."""
    batch: int = 1024
    """Rollouts that are trained together."""
    memory_gb: float = 256.0
    """Main memory of the node of the rollout manager for gateway and samples."""
    disk_gb: float = 4000.0
    """Its local disk, for a day."""
    descriptors: int = 65_536

    @property
    def turns_per_s(self) -> float:
        """Turns of all sandboxes."""
        return self.sandboxes / self.turn_s

    @property
    def rollouts_per_s(self) -> float:
        """Rollouts of all sandboxes."""
        return self.turns_per_s / self.turns

    @property
    def tokens(self) -> float:
        """Tokens of a rollout at its end."""
        return (FIRST_BYTES + self.turns * GROWN_BYTES) / BYTES_PER_TOKEN


@dataclass(frozen=True, slots=True)
class Need:
    """What a job takes of a resource."""

    resource: str
    takes: float
    has: float
    unit: str
    grows: bool = True
    """False: it does not depend on the number of sandboxes."""

    def row(self, sandboxes: int) -> dict[str, str]:
        """Return a line of the table."""
        most = f"{sandboxes * self.has / self.takes:,.0f}" if self.grows else "any"
        return {
            "resource": self.resource,
            "takes": f"{self.takes:,.3g} {self.unit}",
            "of": f"{self.has:,.4g}",
            "used up at": most,
        }


def derive_costs(loads: Sequence[Measured], writes_per_s: float) -> Costs:
    """Return the costs that two loads of different turns, and a large one of replicas, show."""
    short, long, large = loads
    rollouts, turns = short.load.sandboxes, long.load.turns - short.load.turns

    def per_turn(less: float, more: float) -> float:
        return (more - less) / (rollouts * turns)

    def beside_turns(less: float, more: float) -> float:
        found = less / rollouts - short.load.turns * per_turn(less, more)
        return max(0.0, found)  # smaller than what a busy machine adds to either load

    loop = short.gateway.cpu[0], long.gateway.cpu[0]
    stored = short.stored_mb, long.stored_mb
    convert = (long.convert_ms - short.convert_ms) / turns
    whole = large.load.sandboxes
    return Costs(
        loop_turn_ms=1000 * per_turn(*loop),
        loop_rollout_ms=1000 * beside_turns(*loop),
        text_rollout_ms=1000 * sum(short.gateway.cpu[1:]) / rollouts,
        session_mb=large.gateway.memory_mb / whole,
        session_descriptors=large.gateway.descriptors / (whole / large.load.replicas),
        driver_rollout_ms=1000 * (large.driver.cpu[0] - large.driver_idle * large.seconds) / whole,
        driver_idle=large.driver_idle,
        convert_rollout_ms=short.convert_ms + convert * (RECORDED_TURNS - short.load.turns),
        sample_mb=long.sample_mb * RECORDED_TURNS / long.load.turns,
        stored_turn_kb=1000 * per_turn(*stored),
        stored_rollout_kb=1000 * beside_turns(*stored),
        writes_per_s=writes_per_s,
    )


def list_needs(costs: Costs, size: Size) -> list[Need]:
    """Return what a job needs, what is used up first in front."""
    found = list(_list_needs(costs, size))
    return sorted(found, key=lambda need: need.has / need.takes if need.grows else float("inf"))


def _list_needs(costs: Costs, size: Size) -> Iterator[Need]:
    turns, rollouts, count = size.turns_per_s, size.rollouts_per_s, size.sandboxes
    loop = (turns * costs.loop_turn_ms + rollouts * costs.loop_rollout_ms) / 1000
    yield Need("gateway, one process", loop, BUSY, "cores")
    replicas = f"gateway, busiest of {size.replicas} replicas"
    yield Need(replicas, loop / size.replicas, BUSY, "cores")
    text = rollouts * costs.text_rollout_ms / 1000
    yield Need("gateway, processes for long texts", text, 2 * BUSY, "cores")
    driver = rollouts * (costs.driver_rollout_ms + costs.convert_rollout_ms) / 1000
    yield Need("driver, its loop", driver, BUSY - costs.driver_idle, "cores")
    yield Need("store, turns from all processes", turns, BUSY * costs.writes_per_s, "a second")
    memory = count * costs.session_mb / 1000
    yield Need("gateway, memory", memory, size.memory_gb, "GB")
    routing = size.tokens * ROUTING_BYTES / 1e9
    batch = size.batch * costs.sample_mb / 1000
    yield Need("driver, samples of a batch", batch, size.memory_gb, "GB", grows=False)
    with_routing = batch + size.batch * routing
    yield Need("driver, the same with routing", with_routing, size.memory_gb, "GB", grows=False)
    descriptors = count / size.replicas * costs.session_descriptors
    yield Need("descriptors of a replica", descriptors, size.descriptors, "files")
    kept = costs.stored_rollout_kb + size.turns * costs.stored_turn_kb
    stored = DAY_S * rollouts * kept / 1e6
    yield Need("store, a day", stored, size.disk_gb, "GB")
    yield Need("store, a day with routing", stored + DAY_S * rollouts * routing, size.disk_gb, "GB")
    body = FIRST_BYTES + size.turns * GROWN_BYTES / 2
    yield Need("network into the gateway (10 Gb/s)", turns * body / 1e6, 1250, "MB/s")
