"""Decide which groups of rollouts run, and which are trained together, while weights change.

A state machine without clock, I/O and chance. The driver reports what happened, writes the events
that it gets back into the schedule log, and acts on them; ``rebuild`` makes the same state of the
log.

Invariant: with E the groups that are admitted and not yet trained, and v the weights that the next
batch is trained on, ``meets_deadlines(E, v)`` holds at any time. So no order of completions makes
a group miss its deadline, none is left out for being slow, and if all of E are ready a batch can be
taken. Proof: a batch is only taken if it holds for the rest at v + 1; a group that is admitted
later, or begins later than it was admitted, has a later deadline; and admission keeps E at
(1 + w) · B ≤ (1 + η) · B groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from runners.campaigns.overlap.events import (
    Admit,
    Batch,
    Event,
    Ready,
    ScheduleError,
    Start,
    Switch,
    from_row,
)
from runners.campaigns.overlap.limits import OverlapLimits, meets_deadlines

E = TypeVar("E", bound=Event)


class GroupScheduler:
    """Admits groups, gathers batches and follows the weights of one run.

    Changed by the driver alone. Every method that returns events has applied them; each raises
    ScheduleError if what it is told cannot have happened.
    """

    def __init__(self, limits: OverlapLimits) -> None:
        self.limits = limits
        self.version = 0
        """Weights that rollouts are sampled with: the updates made."""
        self.admitted = 0
        """Groups admitted so far, which is the number of the next."""
        self.training: Batch | None = None
        """The batch that is trained, until its weights are those of the rollouts."""
        self._replaced = 0
        self._spares_used = 0
        """Groups replaced since the last batch was taken."""
        self._versions: dict[int, int | None] = {}
        """Weights that each group of E began with, None before it begins."""
        self._ready: set[int] = set()

    @classmethod
    def rebuild(
        cls, limits: OverlapLimits, rows: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> GroupScheduler:
        """Return the state after the rows ``(kind, body)`` of a log.

        Raises ScheduleError if they contradict each other, or ``limits``: those of a resumed run
        may be wider than before, narrower only if all admitted groups can still be trained.
        """
        scheduler = cls(limits)
        for kind, body in rows:
            event = from_row(kind, body)
            if event is not None:
                scheduler._apply(event)
        scheduler._check_deadlines()
        return scheduler

    @property
    def pending(self) -> dict[int, int | None]:
        """Groups that are admitted and not ready, with the weights that they began with."""
        return {g: v for g, v in self._versions.items() if g not in self._ready}

    @property
    def waiting(self) -> frozenset[int]:
        """Groups that are ready and in no batch yet."""
        return frozenset(self._ready)

    @property
    def may_replace(self) -> bool:
        """True if a group without signal is replaced now, instead of being trained as it is."""
        return self._spares_used < self.limits.spares

    @property
    def may_update(self) -> bool:
        """True if rollouts may get the weights of the batch in training, once it is trained.

        In ``step`` only when no group is pending, so that each has one version.
        """
        return self.training is not None and (self.limits.mode != "step" or not self.pending)

    @property
    def finished(self) -> bool:
        """True if all batches of the run are trained."""
        return self.version >= self.limits.batches

    def admit(self) -> list[Admit]:
        """Admit all groups that may run now, in the order in which they should begin.

        Group g is admitted when g < (v + 1 + w) · B, plus the replaced groups; in ``step`` the
        groups of the next batch only while one is trained.
        """
        return [self._apply(Admit(group)) for group in range(self.admitted, self._limit())]

    def start(self, group: int, version: int) -> Start:
        """Note that the first rollout of a group begins, with the present weights ``version``."""
        if self._versions.get(group) is not None:
            raise ScheduleError(f"group {group} has begun already")
        return self._apply(Start(group, version))

    def forget_start(self, group: int) -> None:
        """Forget that a pending group began: a stopped run left no rollout of it, so all of them
        will begin anew. Changes no log; the next ``start`` does.
        """
        if group not in self.pending:
            raise ScheduleError(f"group {group} is not pending")
        self._versions[group] = None

    def ready(self, group: int) -> Ready:
        """Note that all rollouts of a group are final and that it may be trained."""
        return self._apply(Ready(group))

    def replace(self, group: int) -> Admit:
        """Leave out a pending group without signal (flat, or without a grade), and admit the next
        one in its place; only if ``may_replace``.
        """
        if not self.may_replace:
            raise ScheduleError(f"group {group} cannot be replaced: no spare group is left")
        return self._apply(Admit(self.admitted, replaces=group))

    def batch(self) -> Batch | None:
        """Take the next batch: the B oldest ready groups (by weights, then admission), or None
        as long as they are too few, or another group would then miss its deadline.
        """
        if self.training is not None or self.finished:
            return None
        order = sorted((self._versions[group], group) for group in self._ready)
        chosen = {group for _, group in order[: self.limits.groups]}
        rest = (self._known(group) for group in self._versions if group not in chosen)
        if len(chosen) < self.limits.groups or not meets_deadlines(
            rest, self.version + 1, self.limits
        ):
            return None
        groups = tuple(sorted(chosen))
        versions = tuple(self._known(group) for group in groups)
        return self._apply(Batch(self.version + 1, groups, versions))

    def take(self, groups: tuple[int, ...]) -> Batch:
        """Take these ready groups as the next batch, as a schedule says that is replayed."""
        versions = tuple(self._known(group) for group in groups)
        return self._apply(Batch(self.version + 1, groups, versions))

    def updated(self, version: int) -> Switch:
        """Note that the batch in training is trained, and rollouts have its weights ``version``."""
        return self._apply(Switch(version))

    def _known(self, group: int) -> int:
        """Return the weights of a group; for one that has not begun the oldest that it can get."""
        version = self._versions[group]
        return self.version if version is None else version

    def _limit(self) -> int:
        ahead = self.limits.window
        if self.limits.mode == "step" and self.training is None:
            ahead = 0
        batches = min(self.version + 1 + ahead, self.limits.batches)
        return batches * self.limits.groups + self._replaced

    def _check_deadlines(self) -> None:
        first = self.version + (self.training is not None)
        if not meets_deadlines(map(self._known, self._versions), first, self.limits):
            raise ScheduleError(
                f"groups of weights {sorted(set(map(self._known, self._versions)))} wait to be "
                f"trained after update {first}, and not all can be with a staleness of at most "
                f"{self.limits.staleness}"
            )

    def _apply(self, event: E) -> E:
        """Change the state by an event, and return it."""
        problem = self._find_problem(event)
        if problem:
            raise ScheduleError(f"{event} is impossible: {problem}")
        match event:
            case Admit(group, replaces):
                self._versions[group] = None
                self.admitted += 1
                if replaces is not None:
                    del self._versions[replaces]
                    self._replaced += 1
                    self._spares_used += 1
            case Start(group, version):
                self._versions[group] = version
            case Ready(group):
                self._ready.add(group)
            case Batch(_, groups, _):
                self.training = event
                self._spares_used = 0
                self._ready.difference_update(groups)
                for group in groups:
                    del self._versions[group]
            case Switch(version):
                self.version, self.training = version, None
        return event

    def _find_problem(self, event: Event) -> str:
        """Return why an event cannot happen in this state, "" if it can."""
        pending = self.pending
        match event:
            case Admit(group, replaces):
                if group != self.admitted:
                    return f"the next group is {self.admitted}"
                if replaces is not None and pending.get(replaces) is None:
                    return f"group {replaces} is not running"
            case Start(group, version):
                if group not in pending:
                    return "the group is not pending"
                if version != self.version:
                    return f"the weights are {self.version}"
            case Ready(group):
                if pending.get(group) is None:
                    return "the group is not running"
            case Batch(number, groups, versions):
                known = tuple(self._versions.get(group) for group in groups)
                if self.training is not None or number != self.version + 1:
                    return f"the weights are {self.version} and {self.training} is in training"
                if not self._ready.issuperset(groups) or known != versions:
                    return "these groups are not ready with these weights"
            case Switch(version):
                if version != self.version + 1 or not self.may_update:
                    return f"the weights are {self.version}, {len(pending)} groups are pending"
        return ""
