"""Which crossings of a boundary a fault plan hits.

A decision is a hash of the plan's seed, the rule and the crossing (boundary, rollout, attempt, how
many times before): timing and order decide nothing, so a plan hits the same crossings in every
execution, and a resumed run goes on with the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b

from conf.fault_table import Boundary, FaultKind
from conf.sections.faults import FaultRule, FaultsConfig
from runners.trajectory.ids import parse_session_id

MOST = 64
"""Crossings of an attempt that are looked at where a fault must be known before it happens."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that hits a crossing."""

    rule: int
    """Index in the plan."""
    where: Boundary
    what: FaultKind
    rollout_id: str
    attempt: int
    k: int
    """Which crossing of the boundary in this attempt, from 1."""
    seconds: float = 0.0
    status: int | None = None
    dice: int = 0
    """Random bits of this crossing's own, for what has variants."""

    def __str__(self) -> str:
        return f"injected {self.what} at {self.where} {self.k} (rule {self.rule})"

    def event(self) -> dict[str, object]:
        """Return it as it is stored, for comparing what was injected with what was seen."""
        given = {"seconds": self.seconds or None, "status": self.status}
        return {
            "rule": self.rule,
            "where": self.where,
            "what": self.what,
            "rollout_id": self.rollout_id,
            "attempt": self.attempt,
            "k": self.k,
            **{name: value for name, value in given.items() if value is not None},
        }


def attempt_of(name: str) -> tuple[str, int]:
    """Return rollout id and attempt of a session's or a sandbox's name; any other name is a rollout
    of one attempt.
    """
    return parse_session_id(name.removesuffix("-grade")) or (name, 0)


class FaultPlan:
    """A seed and a list of rules."""

    def __init__(self, seed: int, rules: Sequence[FaultRule]) -> None:
        self._seed = seed
        self._rules = tuple(rules)

    @classmethod
    def of(cls, section: FaultsConfig) -> FaultPlan:
        """Return the plan of a configuration."""
        return cls(section.seed or 0, section.rules or ())

    def __bool__(self) -> bool:
        return bool(self._rules)

    def reaches(self, where: Boundary) -> bool:
        """Whether any rule is about this boundary."""
        return any(rule.where == where for rule in self._rules)

    def decide(self, where: Boundary, rollout_id: str, attempt: int, k: int) -> Fault | None:
        """Return what happens at a crossing: the first rule that hits it."""
        for index, rule in enumerate(self._rules):
            if rule.where != where or not _fits(rule, rollout_id, attempt, k):
                continue
            crossing = f"{self._seed}\0{index}\0{where}\0{rollout_id}\0{attempt}\0{k}"
            digest = blake2b(crossing.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if int.from_bytes(digest[:8]) < rule.when.probability * 2**64:
                dice = int.from_bytes(digest[8:])
                seconds = rule.seconds or 0.0
                return Fault(
                    index, where, rule.what, rollout_id, attempt, k, seconds, rule.status, dice
                )
        return None

    def foresee(
        self, where: Boundary, rollout_id: str, attempt: int, *, what: FaultKind | None = None
    ) -> dict[int, Fault]:
        """Return what will happen to an attempt at a boundary, by k: its first ``MOST`` crossings.

        ``what``: only such faults.
        """
        wanted = [r for r in self._rules if r.where == where and what in (None, r.what)]
        crossings: Iterable[int] = {rule.when.k for rule in wanted if rule.when.k is not None}
        if any(rule.when.k is None for rule in wanted):
            crossings = range(1, MOST + 1)
        found = {k: self.decide(where, rollout_id, attempt, k) for k in crossings}
        return {k: one for k, one in found.items() if one is not None and what in (None, one.what)}


def _fits(rule: FaultRule, rollout_id: str, attempt: int, k: int) -> bool:
    when = rule.when
    return (
        (when.k is None or when.k == k)
        and (when.attempts is None or attempt < when.attempts)
        and fnmatchcase(rollout_id, when.rollouts)
    )
