"""Decide which hits of a boundary meet a fault, and record the faults that are injected.

A hit is one call at a boundary. A decision is a hash of the plan's seed, the rule and the hit
(boundary, rollout, attempt, number of the hit): neither timing nor order changes it, so a plan does
the same in every execution, and a resumed run goes on with the same plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any, Protocol

from conf.fault_table import Boundary, FaultKind
from conf.sections.faults import FaultRule, FaultsConfig
from runners.records.ids import parse_session_id, session_id

MAX_FORESEEN = 64
"""Hits of an attempt that are decided in advance, where a fault must be known before it happens."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that applies to a hit."""

    rule: int
    """Index in the plan."""
    where: Boundary
    what: FaultKind
    rollout_id: str
    attempt: int
    k: int
    """Number of the hit of this boundary in this attempt, from 1."""
    seconds: float = 0.0
    status: int | None = None
    random_bits: int = 0
    """64 bits of this hit's own, for kinds that have variants."""

    def __str__(self) -> str:
        return f"injected {self.what} at {self.where} {self.k} (rule {self.rule})"

    def to_event(self) -> dict[str, object]:
        """Return what the store keeps, to compare what was injected with what was seen."""
        event = {name: value for name, value in asdict(self).items() if value is not None}
        del event["random_bits"]
        if not self.seconds:
            del event["seconds"]
        return event


def parse_attempt(name: str) -> tuple[str, int]:
    """Return rollout id and attempt of a session's or a sandbox's name.

    Any other name is a rollout of one attempt.
    """
    return parse_session_id(name.removesuffix("-grade")) or (name, 0)


class FaultPlan:
    """A seed and a list of rules."""

    def __init__(self, seed: int, rules: Sequence[FaultRule]) -> None:
        self._seed = seed
        self._rules = tuple(rules)

    @classmethod
    def from_config(cls, section: FaultsConfig) -> FaultPlan:
        """Return the plan of a configuration."""
        return cls(section.seed or 0, section.rules or ())

    def __bool__(self) -> bool:
        return bool(self._rules)

    def has_rules_for(self, where: Boundary) -> bool:
        """Return whether any rule is about this boundary."""
        return any(rule.where == where for rule in self._rules)

    def decide(self, where: Boundary, rollout_id: str, attempt: int, k: int) -> Fault | None:
        """Return the fault of a hit: of the first rule that applies; None if none does."""
        for index, rule in enumerate(self._rules):
            if rule.where != where or not _matches(rule, rollout_id, attempt, k):
                continue
            hit = f"{self._seed}\0{index}\0{where}\0{rollout_id}\0{attempt}\0{k}"
            digest = blake2b(hit.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if int.from_bytes(digest[:8]) < rule.when.probability * 2**64:
                bits, seconds = int.from_bytes(digest[8:]), rule.seconds or 0.0
                return Fault(
                    index, where, rule.what, rollout_id, attempt, k, seconds, rule.status, bits
                )
        return None

    def foresee(
        self, where: Boundary, rollout_id: str, attempt: int, *, what: FaultKind | None = None
    ) -> dict[int, Fault]:
        """Return the faults of an attempt's first ``MAX_FORESEEN`` hits of a boundary, by k.

        ``what``: only faults of this kind.
        """
        rules = [r for r in self._rules if r.where == where and what in (None, r.what)]
        hits: Iterable[int] = {rule.when.k for rule in rules if rule.when.k is not None}
        if any(rule.when.k is None for rule in rules):
            hits = range(1, MAX_FORESEEN + 1)
        found = {k: self.decide(where, rollout_id, attempt, k) for k in hits}
        return {k: one for k, one in found.items() if one is not None and what in (None, one.what)}


def _matches(rule: FaultRule, rollout_id: str, attempt: int, k: int) -> bool:
    when = rule.when
    return (
        (when.k is None or when.k == k)
        and (when.attempts is None or attempt < when.attempts)
        and fnmatchcase(rollout_id, when.rollouts)
    )


class Events(Protocol):
    """The record of injected faults: a store, or the turn log in front of one."""

    def event(self, kind: str, data: dict[str, Any]) -> Awaitable[None] | None:
        """Record an event; what is returned, if anything, is awaited."""
        ...


class Injection:
    """A plan at work in one process: counts hits, hands out faults and records them.

    The counts grow with the number of attempts of the process.
    """

    def __init__(self, plan: FaultPlan, events: Events) -> None:
        self.plan = plan
        self.pending: dict[str, Fault] = {}
        """Faults of sandboxes that do not exist yet, by their name."""
        self._hits: Counter[tuple[Boundary, str]] = Counter()
        self._events = events

    def draw(self, where: Boundary, name: str) -> Fault | None:
        """Count a hit by the attempt of a session or sandbox; return its fault, if it meets one."""
        rollout_id, attempt = parse_attempt(name)
        hit = where, session_id(rollout_id, attempt)
        self._hits[hit] += 1
        return self.plan.decide(where, rollout_id, attempt, self._hits[hit])

    def record_now(self, fault: Fault) -> Awaitable[None] | None:
        """Record an injected fault; what is returned, if anything, must be awaited."""
        return self._events.event("fault", fault.to_event())

    async def record(self, fault: Fault) -> None:
        """Record an injected fault."""
        if (recorded := self.record_now(fault)) is not None:
            await recorded
