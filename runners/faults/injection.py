"""A fault plan at work in the driver: counts the crossings of each attempt, and keeps what it
injected.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from conf.fault_table import Boundary, FaultKind
from runners.faults.plan import Fault, FaultPlan, attempt_of
from runners.trajectory.ids import session_id


class Events(Protocol):
    """Where injected faults are kept."""

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """Record a notable thing."""
        ...


class Crossings:
    """How many times each attempt crossed each boundary; grows with the attempts of a process."""

    def __init__(self, plan: FaultPlan) -> None:
        self.plan = plan
        self._seen: Counter[tuple[Boundary, str]] = Counter()

    def draw(self, where: Boundary, name: str) -> Fault | None:
        """Count a crossing by the attempt of a session or sandbox; return what happens at it."""
        rollout_id, attempt = attempt_of(name)
        crossed = where, session_id(rollout_id, attempt)
        self._seen[crossed] += 1
        return self.plan.decide(where, rollout_id, attempt, self._seen[crossed])


class Injection:
    """What the wrappers of one driver share."""

    def __init__(self, plan: FaultPlan, events: Events) -> None:
        self.plan = plan
        self.armed: dict[str, Fault] = {}
        """What will happen in a sandbox that does not exist yet, by its name."""
        self._crossings = Crossings(plan)
        self._events = events

    def draw(
        self, where: Boundary, name: str, *, aside: frozenset[FaultKind] = frozenset()
    ) -> Fault | None:
        """Return what happens at this crossing, and keep it; ``aside``: what another wrapper
        injects and keeps.
        """
        fault = self._crossings.draw(where, name)
        if fault is not None and fault.what not in aside:
            self.keep(fault)
        return fault

    def keep(self, fault: Fault) -> None:
        """Record an injected fault."""
        self._events.event("fault", fault.event())
