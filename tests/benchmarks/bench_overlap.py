"""Steps per hour of asynchronous campaigns in virtual time, beside the rules of other systems.

    python -m tests.benchmarks.bench_overlap --groups 8 16 32 --out overlap.json

64 sandboxes, groups of 8 rollouts, 200 tasks; the time of a rollout is log-normal with a median of
6 minutes and a 99th percentile of 60, half of its log-variance between tasks. Training has machines
of its own and takes 30 % of the synchronous step, so nothing can be faster than 3.33 times that.
Not modelled: an engine that slows down with its load, the time of an update, evaluations, failures.

``none``, ``step`` and ``stream`` are decided by the scheduler of `agentrl run` itself. The others:
``dealt``: stream whose batch k is the groups of step k (what w = η amounts to without a queue);
``first come``: the first groups that are ready, admitted as long as dealt < (v + 1 + η) · B (AReaL,
SkyRL: arXiv 2505.24298); ``drop stale``: the same, and groups older than η are given up (prime-rl,
Miles); ``drop tail``: a synchronous step begins more groups than it needs and gives up the slowest.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from conf.sections.run import OverlapName
from runners.campaigns.overlap.limits import OverlapLimits
from tests.benchmarks.virtual_campaign import (
    Rule,
    Scheduled,
    Taken,
    VirtualCampaign,
    Workload,
)

SANDBOXES = 64
ROLLOUTS = 8
TASKS = 200
MEDIAN_MIN = 6.0
P99_MIN = 60.0
TRAINING_SHARE = 0.3
"""Of the synchronous step."""
ENDLESS = 1_000_000
"""Batches of a run that is stopped from outside."""
WARM_UP = 30
"""Steps that are not counted, in which the pipeline fills."""


class FirstCome:
    """Admit by the number of groups, train the first that are ready; a base for the others."""

    def __init__(self, groups: int, ahead: int) -> None:
        self._size = groups
        self._ahead = ahead
        self._version = 0
        self._dealt = 0
        self._given_up = 0
        """Groups whose places others may take."""
        self._begun: dict[int, int] = {}
        """Weights of each group that began and is in no batch."""
        self._ready: list[int] = []

    def admit(self) -> Sequence[int]:
        first = self._dealt
        batches = self._version + 1 + self._ahead
        self._dealt = max(first, batches * self._size + self._given_up)
        return range(first, self._dealt)

    def start(self, group: int) -> None:
        self._begun[group] = self._version

    def finish(self, group: int, flat: bool) -> None:
        self._ready.append(group)

    def take(self) -> Taken | None:
        groups = self._choose()
        if len(groups) < self._size:
            return None
        self._ready = [group for group in self._ready if group not in groups]
        for group in groups:
            del self._begun[group]
        return Taken(groups)

    def _choose(self) -> tuple[int, ...]:
        return tuple(self._ready[: self._size])

    def update(self) -> Collection[int] | None:
        self._version += 1
        return ()


class DropStale(FirstCome):
    """Give up, at every update, the groups that are older than allowed, ready or not."""

    def update(self) -> Collection[int] | None:
        super().update()
        stale = {g for g, version in self._begun.items() if version + self._ahead < self._version}
        self._ready = [group for group in self._ready if group not in stale]
        for group in stale:
            del self._begun[group]
        self._given_up += len(stale)
        return stale


class DropTail(FirstCome):
    """Begin ``share`` times the groups of a step, and give up the rest when enough are ready."""

    def __init__(self, groups: int, share: float) -> None:
        super().__init__(groups, 0)
        self._extra = math.ceil(groups * share) - groups
        self._given_up = self._extra

    def take(self) -> Taken | None:
        taken = super().take()
        if taken is None:
            return None
        begun = range(self._dealt - self._size - self._extra, self._dealt)
        self._ready = []
        self._begun = {}
        return Taken(taken.groups, set(begun) - set(taken.groups))

    def update(self) -> Collection[int] | None:
        self._given_up += self._extra
        return super().update()


class Dealt(FirstCome):
    """Train the groups of step k in batch k."""

    def _choose(self) -> tuple[int, ...]:
        end = (self._version + 1) * self._size
        return tuple(group for group in self._ready if group < end)


@dataclass(frozen=True, slots=True)
class Row:
    """A rule to be measured, by its name and what makes it for B groups."""

    name: str
    make: Callable[[int], Rule]


def _scheduled(mode: OverlapName, window: int, staleness: int) -> Callable[[int], Rule]:
    return lambda groups: Scheduled(OverlapLimits(mode, groups, ENDLESS, staleness, window))


ROWS = [
    Row("none (synchronous)", _scheduled("none", 0, 0)),
    Row("step", _scheduled("step", 1, 1)),
    *(
        Row(f"stream w={w} η={n}", _scheduled("stream", w, n))
        for w, n in ((1, 1), (1, 2), (1, 4), (2, 4), (4, 4))
    ),
    *(Row(f"dealt η={n}", lambda groups, n=n: Dealt(groups, n)) for n in (0, 1, 2, 4)),  # type: ignore[misc]
    *(Row(f"first come η={n}", lambda groups, n=n: FirstCome(groups, n)) for n in (1, 2, 4)),  # type: ignore[misc]
    *(Row(f"drop stale η={n}", lambda groups, n=n: DropStale(groups, n)) for n in (1, 2, 4)),  # type: ignore[misc]
    *(Row(f"drop tail {s}", lambda groups, s=s: DropTail(groups, s)) for s in (1.25, 1.5)),  # type: ignore[misc]
]


@dataclass(frozen=True, slots=True)
class Figures:
    """A rule's figures, of one seed or the mean of several."""

    steps_per_hour: float
    speed_up: float
    """Over ``none``."""
    mean_staleness: float
    max_staleness: float
    slow_share: float
    """The slowest tenth of the tasks in training, relative to its part of what was begun."""
    lost: float
    """Part of the sandboxes' time that was spent on groups that were given up."""


class TaskTimes:
    """Minutes of each rollout, and the task of each group, of one seed."""

    _PERIOD = 1 << 14
    """Groups until times repeat, none of the runs needs more."""

    def __init__(self, seed: int) -> None:
        dice = np.random.default_rng(seed)
        # The median of a log-normal time is exp(mean), its p99 exp(mean + 2.326 sigma).
        sigma = math.log(P99_MIN / MEDIAN_MIN) / statistics.NormalDist().inv_cdf(0.99)
        level = dice.normal(0, sigma / math.sqrt(2), TASKS)
        passes = [dice.permutation(TASKS) for _ in range(self._PERIOD // TASKS + 1)]
        self.tasks: list[int] = np.concatenate(passes)[: self._PERIOD].tolist()
        noise = dice.normal(0, sigma / math.sqrt(2), (self._PERIOD, ROLLOUTS))
        self._minutes = (MEDIAN_MIN * np.exp(level[self.tasks, None] + noise)).tolist()
        self.slow = {int(task) for task in np.argsort(level)[-TASKS // 10 :]}

    def rollout(self, group: int, member: int, attempt: int) -> float:
        """Return the minutes of a rollout; there are no second attempts."""
        minutes: float = self._minutes[group][member]
        return minutes

    def is_slow(self, group: int) -> bool:
        """Return whether a group's task is of the slowest tenth."""
        return self.tasks[group] in self.slow


def measure(rule: Rule, times: TaskTimes, training: float, steps: int) -> Figures:
    """Run a rule; return its figures with a speed-up of 0."""
    campaign = VirtualCampaign(Workload(SANDBOXES, ROLLOUTS, training, times.rollout), rule)
    campaign.run(WARM_UP)
    began, first = campaign.now, len(campaign.groups)
    campaign.run(WARM_UP + steps)
    counted = campaign.steps[WARM_UP:]
    ages = [age for step in counted for age in step.staleness]
    trained = Counter(times.is_slow(group) for step in counted for group in step.groups)
    begun = Counter(times.is_slow(group) for group in range(first, len(campaign.groups)))
    minutes = {group: state.minutes for group, state in campaign.groups.items()}
    return Figures(
        steps_per_hour=60 * steps / (campaign.now - began),
        speed_up=0.0,
        mean_staleness=statistics.fmean(ages),
        max_staleness=max(ages),
        slow_share=(trained[True] / trained.total()) / (begun[True] / begun.total()),
        lost=sum(minutes.get(g, 0.0) for g in campaign.cancelled) / sum(minutes.values()),
    )


def compare(groups: int, seeds: Sequence[int], steps: int) -> dict[str, Figures]:
    """Return the figures of each rule for batches of ``groups``, mean over seeds; the greatest
    staleness is that of all.
    """
    found: dict[str, list[Figures]] = {row.name: [] for row in ROWS}
    for seed in seeds:
        times = TaskTimes(seed)
        alone = measure(ROWS[0].make(groups), times, 0.0, steps)
        training = 60 / alone.steps_per_hour * TRAINING_SHARE / (1 - TRAINING_SHARE)
        for row in ROWS:
            found[row.name].append(measure(row.make(groups), times, training, steps))
    base = statistics.fmean(each.steps_per_hour for each in found[ROWS[0].name])
    return {name: _mean(each, base) for name, each in found.items()}


def _mean(figures: Sequence[Figures], base: float) -> Figures:
    rows = [asdict(each) for each in figures]
    mean = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
    mean["speed_up"] = mean["steps_per_hour"] / base
    mean["max_staleness"] = max(each.max_staleness for each in figures)
    return Figures(**mean)


def show(results: dict[int, dict[str, Figures]]) -> Table:
    """Return a table: all figures of the first batch size, speed-ups of all."""
    first, *others = results
    table = Table(title=f"{SANDBOXES} sandboxes, groups of {ROLLOUTS}; B groups per batch")
    columns = ("steps/h", "×", "staleness", "slow", "lost", *(f"× (B={each})" for each in others))
    for column in (f"B={first}", *columns):
        table.add_column(column, justify="left" if column.startswith("B=") else "right")
    for name, row in results[first].items():
        table.add_row(
            name,
            f"{row.steps_per_hour:.2f}",
            f"{row.speed_up:.2f}",
            f"{row.mean_staleness:.1f} / {row.max_staleness:.0f}",
            f"{row.slow_share:.2f}",
            f"{row.lost:.0%}",
            *(f"{results[each][name].speed_up:.2f}" for each in others),
        )
    return table


def main() -> None:
    """Run all rules, print a table and write the JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, nargs="+", default=[8], help="B, one or more")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(6)))
    parser.add_argument("--steps", type=int, default=150, help="after a warm-up of 30")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = {each: compare(each, options.seeds, options.steps) for each in options.groups}
    Console(stderr=True, width=120).print(show(results))
    document = {
        "benchmark": "overlap",
        "results": {
            str(groups): {name: asdict(row) for name, row in rows.items()}
            for groups, rows in results.items()
        },
    }
    text = json.dumps(document)
    if options.out is not None:
        options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
