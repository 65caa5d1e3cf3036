"""A campaign in virtual time: sandboxes, rollouts, training and kills as discrete events.

A rule decides which groups run and which are trained; the world knows how long everything takes.
Whatever the rule claims about weights and loss, the world measures by itself.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from runners.campaigns.overlap.events import Event, to_row
from runners.campaigns.overlap.limits import OverlapLimits
from runners.campaigns.overlap.scheduler import GroupScheduler


class Deadlock(Exception):
    """Nothing runs, and nothing can begin."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a rule decides when a batch begins."""

    groups: tuple[int, ...]
    given_up: Collection[int] = ()
    """Groups that are not trained and stop running."""


class Rule(Protocol):
    """Decide which groups are rolled out and trained."""

    def admit(self) -> Sequence[int]:
        """Return the groups that may run from now on, in their order."""

    def start(self, group: int) -> None:
        """Note that the first rollout of a group begins with the present weights."""

    def finish(self, group: int, flat: bool) -> None:
        """Note that a group is complete; ``flat``: its rewards are equal."""

    def take(self) -> Taken | None:
        """Return the groups that are trained next, None if that has to wait."""

    def update(self) -> Collection[int] | None:
        """Change the weights to the trained ones, and return the groups that are given up for it;
        None if that has to wait.
        """


class Scheduled:
    """The rule of agentrl: its scheduler, with the log that a driver would write."""

    def __init__(self, limits: OverlapLimits) -> None:
        self.scheduler = GroupScheduler(limits)
        self.log: list[tuple[str, str]] = []
        self._fresh: list[int] = []

    def admit(self) -> Sequence[int]:
        for event in self.scheduler.admit():
            self._write(event)
            self._fresh.append(event.group)
        fresh, self._fresh = self._fresh, []
        return fresh

    def start(self, group: int) -> None:
        self._write(self.scheduler.start(group, self.scheduler.version))

    def finish(self, group: int, flat: bool) -> None:
        if flat and self.scheduler.may_replace:
            event = self.scheduler.replace(group)
            self._write(event)
            self._fresh.append(event.group)
        else:
            self._write(self.scheduler.ready(group))

    def take(self) -> Taken | None:
        batch = self.scheduler.batch()
        if batch is None:
            return None
        self._write(batch)
        return Taken(batch.groups)

    def update(self) -> Collection[int] | None:
        if not self.scheduler.may_update:
            return None
        self._write(self.scheduler.updated(self.scheduler.version + 1))
        return ()

    def rebuild(self) -> None:
        """Forget everything but the log, and read that."""
        rows: list[tuple[str, Any]] = [(kind, json.loads(body)) for kind, body in self.log]
        self.scheduler = GroupScheduler.rebuild(self.scheduler.limits, rows)

    def _write(self, event: Event) -> None:
        kind, body = to_row(event)
        self.log.append((kind, json.dumps(body)))


@dataclass(frozen=True, slots=True)
class Workload:
    """What a campaign costs, in minutes."""

    sandboxes: int
    rollouts: int
    """Of a group."""
    training: float
    """Of a batch."""
    rollout: Callable[[int, int, int], float]
    """Of a group's member, and how often it began before."""
    flat: Callable[[int], bool] = lambda group: False


@dataclass(slots=True)
class Group:
    """A group as the world sees it."""

    minutes: float = 0.0
    """Of sandboxes."""
    versions: dict[int, int] = field(default_factory=dict)
    """Weights at the beginning of each rollout, of its last attempt."""
    done: int = 0


@dataclass(frozen=True, slots=True)
class Trained:
    """A batch, when its training has ended."""

    at: float
    groups: tuple[int, ...]
    staleness: tuple[int, ...]
    """Of the oldest token of each."""


class VirtualCampaign:
    """Runs a workload under a rule; the fields are what has happened."""

    def __init__(self, workload: Workload, rule: Rule) -> None:
        self.rule = rule
        self.now = 0.0
        self.version = 0
        self.steps: list[Trained] = []
        self.groups: dict[int, Group] = {}
        self.cancelled: set[int] = set()
        self._workload = workload
        self._events: list[tuple[float, int, tuple[int, int] | None]] = []
        """When, tie-break, the rollout that ends or None for the training."""
        self._order = count()
        self._queue: list[tuple[int, int]] = []
        """Rollouts without a sandbox, the next one last."""
        self._running: dict[tuple[int, int], tuple[int, float]] = {}
        """Rollouts with a sandbox: the tie-break of their end, and when they began."""
        self._attempts: dict[tuple[int, int], int] = {}
        self._batch: tuple[int, ...] = ()
        self._training_end: int | None = None
        self._settle()

    def run(self, steps: int) -> None:
        """Run until so many batches are trained; raises Deadlock."""
        while len(self.steps) < steps:
            self.advance()

    def advance(self) -> None:
        """Let the next thing happen; raises Deadlock."""
        if not self._events:
            raise Deadlock(f"after {len(self.steps)} steps, at {self.now}")
        self.now, order, rollout = heapq.heappop(self._events)
        if rollout is None:
            if order == self._training_end:
                self._end_training()
        elif self._running.get(rollout, (None,))[0] == order:
            self._end_rollout(rollout)
        self._settle()

    def kill(self) -> None:
        """Kill the driver and resume the campaign: what runs begins again, what is done is kept."""
        assert isinstance(self.rule, Scheduled)
        self.rule.rebuild()
        for rollout in sorted(self._running, reverse=True):
            self._stop(rollout)
            del self.groups[rollout[0]].versions[rollout[1]]
            self._queue.append(rollout)
        self._queue.sort(reverse=True)
        for group, version in self.rule.scheduler.pending.items():
            if version is not None and not self.groups[group].versions:
                self.rule.scheduler.forget_start(group)
        if self._training_end is not None:
            self._begin_training(self._batch)
        self._settle()

    def _settle(self) -> None:
        """Do all that can be done at once."""
        if self._batch and self._training_end is None:
            self._update()
        if not self._batch and (taken := self.rule.take()) is not None:
            self._begin_training(taken.groups)
            self._give_up(taken.given_up)
        members = range(self._workload.rollouts)
        fresh = [(group, member) for group in self.rule.admit() for member in members]
        self._queue[:0] = reversed(fresh)
        while self._queue and len(self._running) < self._workload.sandboxes:
            self._begin_rollout(self._queue.pop())

    def _update(self) -> None:
        given_up = self.rule.update()
        if given_up is None:
            return
        self.version += 1
        self._batch = ()
        self._give_up(given_up)

    def _give_up(self, given_up: Collection[int]) -> None:
        if not given_up:
            return
        self.cancelled.update(given_up)
        for rollout in [each for each in self._running if each[0] in given_up]:
            self._stop(rollout)
        self._queue = [each for each in self._queue if each[0] not in given_up]

    def _begin_training(self, groups: tuple[int, ...]) -> None:
        self._batch = groups
        self._training_end = self._add(self._workload.training, None)

    def _end_training(self) -> None:
        self._training_end = None
        staleness = tuple(
            self.version - min(self.groups[group].versions.values()) for group in self._batch
        )
        self.steps.append(Trained(self.now, self._batch, staleness))

    def _begin_rollout(self, rollout: tuple[int, int]) -> None:
        group, member = rollout
        state = self.groups.setdefault(group, Group())
        if not state.versions:
            self.rule.start(group)
        state.versions[member] = self.version
        attempt = self._attempts.get(rollout, 0)
        self._attempts[rollout] = attempt + 1
        end = self._add(self._workload.rollout(group, member, attempt), rollout)
        self._running[rollout] = (end, self.now)

    def _end_rollout(self, rollout: tuple[int, int]) -> None:
        self._stop(rollout)
        state = self.groups[rollout[0]]
        state.done += 1
        if state.done == self._workload.rollouts:
            self.rule.finish(rollout[0], self._workload.flat(rollout[0]))

    def _stop(self, rollout: tuple[int, int]) -> None:
        _, began = self._running.pop(rollout)
        self.groups[rollout[0]].minutes += self.now - began

    def _add(self, minutes: float, what: tuple[int, int] | None) -> int:
        order = next(self._order)
        heapq.heappush(self._events, (self.now + minutes, order, what))
        return order
