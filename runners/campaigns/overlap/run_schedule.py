"""The schedule of a run: its state, and its events in the store.

Invariant: what was decided is in the log before anybody acts on it, so a resumed run makes the same
state of the log and goes on as the killed one would have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conf.schema import Config
from conf.sections.run import FIXED_STALENESS, STALENESS, WINDOW
from conf.sections.training import SlimeTrainerConfig
from runners.campaigns.overlap.events import (
    DEAL,
    Admit,
    Batch,
    Event,
    from_row,
    read_deals,
    to_row,
)
from runners.campaigns.overlap.limits import OverlapLimits
from runners.campaigns.overlap.recorded import RecordedSchedule
from runners.campaigns.overlap.scheduler import GroupScheduler
from runners.campaigns.schedule import count_supervised
from runners.records.store import RunStore


def find_staleness(run: Mapping[str, Any]) -> int:
    """Return the most updates between a group's weights and its training, by the stored keys of
    ``run``, some of which older runs lack.
    """
    fixed = FIXED_STALENESS.get(run.get("overlap", "none"))
    given = run.get("staleness")
    return fixed if fixed is not None else STALENESS if given is None else int(given)


def find_limits(config: Config) -> OverlapLimits:
    """Return how far the rollouts of a configuration may run ahead of its training."""
    run = config.run
    staleness = find_staleness({"overlap": run.overlap, "staleness": run.staleness})
    window = staleness
    if run.overlap == "stream":
        if isinstance(config.trainer, SlimeTrainerConfig):
            # slime asks for a batch while it trains the one before: the weights that are known are
            # one update older than those that it will be trained on.
            staleness -= 1
        window = min(WINDOW, staleness) if run.window is None else run.window
    return OverlapLimits(
        run.overlap,
        groups=run.tasks_per_step,
        batches=max(0, run.steps - count_supervised(config)),
        staleness=staleness,
        window=window,
        spares=config.rollout.spare_groups,
    )


def find_place(config: Config, group: int) -> tuple[int, int]:
    """Return the step for which a group of a schedule is dealt, and its number there."""
    step, number = divmod(group, config.run.tasks_per_step)
    return count_supervised(config) + step + 1, number


class RunSchedule:
    """A ``GroupScheduler`` with its log; written by the driver alone."""

    def __init__(
        self, config: Config, store: RunStore, recorded: RecordedSchedule | None = None
    ) -> None:
        """Read the log; raises ScheduleError if it contradicts itself or the limits.

        ``recorded``: the schedule that the run replays.
        """
        rows = store.schedule()
        self._store = store
        self.recorded = recorded
        self._config = config
        self._before = count_supervised(config)
        limits = find_limits(config)
        if recorded is not None:  # whose groups were replaced within the limit, at other times
            limits = replace(limits, spares=len(recorded.replaced))
        self.state = GroupScheduler.rebuild(limits, rows)
        self.tasks: dict[int, str] = {}
        """Task of each group that was admitted."""
        self.deals = read_deals(rows)
        """Tasks of each step, in the order of its groups, from the first group that was dealt."""
        self._replaced: list[int] = []
        self._replaced_before: set[int] = set()
        self.left_out: tuple[int, ...] = ()
        """Groups without signal that were replaced while the batch in training gathered."""
        for kind, body in rows:
            event = from_row(kind, body)
            if event is not None:
                self._follow(event, body)

    def next_batch(self) -> Batch | None:
        """Take the next batch, the recorded one in a replay; None as long as it is not ready."""
        if self.recorded is None:
            return self.state.batch()
        recorded = self.recorded.batches[self.state.version + 1]
        if not self.state.waiting.issuperset(recorded.groups):
            return None
        if not self._replaced_before.issuperset(self.recorded.left_out[recorded.number]):
            return None
        return self.state.take(recorded.groups)

    def may_begin(self, group: int) -> bool:
        """Return whether a group may begin with the present weights."""
        return self.recorded is None or self.recorded.starts[group] <= self.state.version

    def is_replaced(self, group: int, *, untrainable: bool) -> bool:
        """Return whether a complete group is replaced by the next deal."""
        if self.recorded is not None:
            return group in self.recorded.replaced
        return untrainable and self.state.may_replace

    def not_begun(self, groups: set[int]) -> set[int]:
        """Return those of the groups that have not begun."""
        pending = self.state.pending
        return {g for g in groups if g >= self.state.admitted or pending.get(g, 0) is None}

    @property
    def version(self) -> int:
        """Version of the weights that rollouts are sampled with: the number of steps made."""
        return self._before + self.state.version

    def step_of(self, batch: Batch) -> int:
        """Return the training step of a batch: before the first there may be supervised ones."""
        return self._before + batch.number

    def place_of(self, group: int) -> tuple[int, int]:
        """Return the step for which a group is dealt, and its number there: so it has its task, its
        rollouts' ids and their seeds, whenever it is trained.
        """
        return find_place(self._config, group)

    def find_recorded_deal(self, step: int) -> list[str] | None:
        """Return the tasks that a replayed run had in a step; None if there is none that says."""
        return None if self.recorded is None else self.recorded.deals.get(step)

    def log_deal(self, step: int, tasks: list[str]) -> None:
        """Append the tasks of a step."""
        self._store.log_schedule(DEAL, {"step": step, "tasks": tasks})
        self.deals[step] = tasks

    def log(self, event: Event, **more: Any) -> None:
        """Append an event that the state has been changed by, with what else is to be known."""
        kind, body = to_row(event)
        self._store.log_schedule(kind, body | more)
        self._follow(event, body | more)

    def log_batch(self, batch: Batch) -> None:
        """Append a batch, and begin its step."""
        kind, body = to_row(batch)
        tasks = [self.tasks[group] for group in batch.groups]
        self._store.log_batch(self.step_of(batch), tasks, kind, body)
        self._follow(batch, body)

    def _follow(self, event: Event, body: dict[str, Any]) -> None:
        if isinstance(event, Admit):
            self.tasks[event.group] = body["task"]
            if event.replaces is not None:
                self._replaced.append(event.replaces)
                self._replaced_before.add(event.replaces)
        elif isinstance(event, Batch):
            self.left_out, self._replaced = tuple(self._replaced), []
            if self.recorded is not None:
                self.left_out = self.recorded.left_out[event.number]
