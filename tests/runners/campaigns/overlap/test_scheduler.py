"""The scheduler of asynchronous campaigns, in worlds of virtual time."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.sections.run import OverlapName
from runners.campaigns.overlap.events import Batch, ScheduleError, from_row, to_row
from runners.campaigns.overlap.limits import OverlapLimits, meets_deadlines
from runners.campaigns.overlap.scheduler import GroupScheduler
from tests.benchmarks.virtual_campaign import Scheduled, Taken, VirtualCampaign, Workload

MODES: tuple[OverlapName, ...] = ("none", "step", "stream")


@dataclass(frozen=True, slots=True)
class World:
    """A random workload with its limits."""

    limits: OverlapLimits
    workload: Workload
    kills: frozenset[int]
    """Numbers of the events after which the driver is killed."""


@st.composite
def limits(draw: st.DrawFn, modes: Sequence[OverlapName] = MODES) -> OverlapLimits:
    """Draw limits, with up to twelve batches."""
    mode = draw(st.sampled_from(modes))
    staleness = {"none": 0, "step": 1}.get(mode, draw(st.integers(0, 4)))
    window = staleness if mode != "stream" else draw(st.integers(0, staleness))
    small = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    return OverlapLimits(mode, *small, staleness, window, draw(st.integers(0, 3)))


@st.composite
def worlds(draw: st.DrawFn, modes: Sequence[OverlapName] = MODES, kills: int = 5) -> World:
    """Draw a world: rollouts of a log-normal time, some a hundred times as long, flat groups."""
    seed = draw(st.integers(0, 2**32))
    spread = draw(st.sampled_from([0.0, 0.3, 1.0, 2.0]))
    stragglers = draw(st.sampled_from([0.0, 0.02, 0.3]))
    flat = draw(st.sampled_from([0.0, 0.0, 0.3, 1.0]))

    def rollout(group: int, member: int, attempt: int) -> float:
        dice = random.Random(f"{seed} {group} {member} {attempt}")
        return dice.lognormvariate(0, spread) * (100 if dice.random() < stragglers else 1)

    workload = Workload(
        sandboxes=draw(st.integers(1, 24)),
        rollouts=draw(st.integers(1, 4)),
        training=draw(st.sampled_from([0.0, 0.1, 1.0, 10.0])),
        rollout=rollout,
        flat=lambda group: random.Random(f"{seed} flat {group}").random() < flat,
    )
    numbers = st.frozensets(st.integers(0, 200), max_size=kills)
    return World(draw(limits(modes)), workload, draw(numbers))


def parse(log: Sequence[tuple[str, str]]) -> list[tuple[str, Any]]:
    """Return the rows of a log as events would give them."""
    rows = [(kind, json.loads(body)) for kind, body in log]
    return [to_row(event) for row in rows if (event := from_row(*row)) is not None]


def rebuild(limits: OverlapLimits, log: Sequence[tuple[str, str]]) -> GroupScheduler:
    """Return the scheduler that a log makes."""
    return GroupScheduler.rebuild(limits, [(kind, json.loads(body)) for kind, body in log])


def run(world: World) -> tuple[VirtualCampaign, Scheduled]:
    """Run a world to its last batch, with its kills; raises Deadlock."""
    rule = Scheduled(world.limits)
    campaign = VirtualCampaign(world.workload, rule)
    for number in range(1_000_000):
        if rule.scheduler.finished or len(campaign.steps) == world.limits.batches:
            break
        campaign.advance()
        if number in world.kills:
            campaign.kill()
    return campaign, rule


def check_world(world: World) -> None:
    """Check what must hold in every world: P3 and, exactly, P4 of the design."""
    campaign, rule = run(world)
    batches, size = world.limits.batches, world.limits.groups
    assert [len(step.groups) for step in campaign.steps] == [size] * batches
    assert max(age for step in campaign.steps for age in step.staleness) <= world.limits.staleness
    trained = [group for step in campaign.steps for group in step.groups]
    assert len(set(trained)) == len(trained)
    # Whatever was begun is trained, however slow it was, but for flat groups that were replaced.
    left_out = campaign.groups.keys() - set(trained)
    assert all(world.workload.flat(group) for group in left_out)
    assert len(left_out) <= world.limits.spares * batches
    assert rule.scheduler.pending == {}
    logged = [kind for kind, _ in rule.log]
    assert logged.count("batch") == batches


@settings(max_examples=100)
@given(worlds())
def test_every_group_is_trained_in_time_in_any_world(world: World) -> None:
    check_world(world)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(worlds(kills=12))
def test_every_group_is_trained_in_time_in_ten_thousand_worlds(world: World) -> None:
    check_world(world)


@given(worlds(("step",)))
def test_a_batch_of_step_is_one_update_old_from_the_second_on(world: World) -> None:
    campaign, _ = run(world)
    size = world.limits.groups
    assert [step.staleness for step in campaign.steps] == [
        (min(number, 1),) * size for number in range(world.limits.batches)
    ]


@given(worlds(("none", "step")))
def test_without_streaming_a_batch_is_the_next_groups_that_are_not_replaced(world: World) -> None:
    campaign, _ = run(world)
    begun = sorted(campaign.groups)
    for step, before in zip(campaign.steps, [None, *campaign.steps], strict=False):
        first = 0 if before is None else max(before.groups) + 1
        kept = [group for group in begun if group in step.groups]
        assert list(step.groups) == kept
        assert min(kept) >= first
    if not world.limits.spares:
        size = world.limits.groups
        assert [step.groups for step in campaign.steps] == [
            tuple(range(number * size, (number + 1) * size))
            for number in range(world.limits.batches)
        ]


@given(worlds(("none",)))
def test_streaming_without_staleness_is_the_synchronous_campaign(world: World) -> None:
    campaign, rule = run(world)
    streamed, stream_rule = run(replace(world, limits=replace(world.limits, mode="stream")))
    assert stream_rule.log == rule.log
    assert streamed.steps == campaign.steps


class Forgetful(Scheduled):
    """Knows nothing but its log: reads it again after everything that happens."""

    def admit(self) -> Sequence[int]:
        before = len(self.log)
        groups = super().admit()
        for length in range(before, len(self.log)):  # killed while these rows are written
            read = rebuild(self.scheduler.limits, self.log[:length])
            assert [to_row(event) for event in read.admit()] == parse(self.log[length:])
        self._forget()
        return groups

    def start(self, group: int) -> None:
        super().start(group)
        self._forget()

    def finish(self, group: int, flat: bool) -> None:
        super().finish(group, flat)
        self._forget()

    def take(self) -> Taken | None:
        taken = super().take()
        self._forget()
        return taken

    def update(self) -> Collection[int] | None:
        given_up = super().update()
        self._forget()
        return given_up

    def _forget(self) -> None:
        before = self.scheduler
        self.rebuild()
        assert vars(self.scheduler) == vars(before)


@pytest.mark.integration
@given(worlds(kills=0))
def test_the_log_restores_the_state_and_the_continuation_at_every_point(world: World) -> None:
    campaign, rule = run(world)
    forgetful = Forgetful(world.limits)
    again = VirtualCampaign(world.workload, forgetful)
    again.run(world.limits.batches)
    assert forgetful.log == rule.log
    assert again.steps == campaign.steps


@given(limits(("stream",)), st.randoms(use_true_random=False))
def test_a_batch_does_not_depend_on_the_order_in_which_groups_were_ready(
    limits: OverlapLimits, dice: random.Random
) -> None:
    one, two = GroupScheduler(limits), GroupScheduler(limits)
    while not one.finished:
        for event in one.admit():
            two.admit()
            for each in (one, two):
                each.start(event.group, each.version)
        done = sorted(group for group in one.pending if dice.random() < 0.5)
        for each in (one, two):
            dice.shuffle(done)
            for group in done:
                each.ready(group)
        batch = one.batch()
        assert two.batch() == batch
        if batch is not None:
            for each in (one, two):
                each.updated(each.version + 1)


@given(
    st.lists(st.integers(0, 5), max_size=12),
    st.integers(5, 7),
    st.integers(1, 3),
    st.integers(0, 5),
)
def test_the_deadline_rule_says_whether_training_the_oldest_first_is_in_time(
    versions: list[int], first: int, size: int, staleness: int
) -> None:
    limits = OverlapLimits("stream", size, 99, staleness)
    in_time = all(
        first + place // size <= version + staleness
        for place, version in enumerate(sorted(versions))
    )
    assert meets_deadlines(versions, first, limits) == in_time


@pytest.mark.parametrize(("window", "staleness"), [(1, 2), (1, 4), (2, 4), (4, 4)])
def test_a_slow_task_keeps_its_share(window: int, staleness: int) -> None:
    tasks, size, steps = 40, 4, 200

    def rollout(group: int, member: int, attempt: int) -> float:
        slow = 20.0 if group % tasks < tasks // 10 else 1.0
        return slow * random.Random(f"{group} {member}").lognormvariate(0, 0.7)

    rule = Scheduled(OverlapLimits("stream", size, 10_000, staleness, window))
    campaign = VirtualCampaign(Workload(32, 4, 2.0, rollout), rule)
    campaign.run(steps)
    dealt = Counter(group % tasks for group in range(rule.scheduler.admitted))
    trained = Counter(group % tasks for step in campaign.steps for group in step.groups)
    out = Counter(group % tasks for group in (*rule.scheduler.pending, *rule.scheduler.waiting))
    assert dealt == trained + out
    slow = sum(count for task, count in trained.items() if task < tasks // 10)
    assert slow / trained.total() >= 0.97 * 0.1
    assert max(age for step in campaign.steps for age in step.staleness) == staleness


def test_a_batch_waits_for_a_group_that_would_miss_its_deadline() -> None:
    scheduler = GroupScheduler(OverlapLimits("stream", 1, 9, staleness=1, window=1))
    for event in scheduler.admit():
        scheduler.start(event.group, 0)
    scheduler.ready(1)
    assert scheduler.batch() == Batch(1, (1,), (0,))
    scheduler.updated(1)
    (fresh,) = scheduler.admit()
    scheduler.start(fresh.group, 1)
    scheduler.ready(2)
    assert (
        scheduler.batch() is None
    )  # group 0 is of weights 0: update 2 is the last that may use it
    scheduler.ready(0)
    batch = scheduler.batch()
    assert batch is not None
    assert (batch.groups, batch.staleness) == ((0,), (1,))


def test_a_group_that_has_not_begun_makes_nobody_wait() -> None:
    scheduler = GroupScheduler(OverlapLimits("stream", 1, 9, staleness=1, window=1))
    scheduler.admit()
    scheduler.start(1, 0)
    scheduler.ready(1)
    assert scheduler.batch() is not None
    scheduler.updated(1)
    scheduler.admit()
    scheduler.start(2, 1)
    scheduler.ready(2)
    assert scheduler.batch() is not None  # group 0 will begin with weights 1 or newer
    scheduler.start(0, 1)


def test_a_group_that_begins_anew_has_the_present_weights() -> None:
    scheduler = GroupScheduler(OverlapLimits("stream", 1, 9, staleness=1, window=1))
    scheduler.admit()
    scheduler.start(0, 0)
    scheduler.start(1, 0)
    scheduler.ready(1)
    scheduler.batch()
    scheduler.updated(1)
    scheduler.forget_start(0)
    scheduler.start(0, 1)
    assert scheduler.pending == {0: 1}


def test_the_group_of_the_oldest_weights_is_trained_first() -> None:
    scheduler = GroupScheduler(OverlapLimits("stream", 1, 9, staleness=2, window=2))
    scheduler.admit()
    scheduler.start(1, 0)
    scheduler.start(2, 0)
    scheduler.ready(1)
    scheduler.batch()
    scheduler.updated(1)
    scheduler.start(0, 1)
    scheduler.ready(0)
    scheduler.ready(2)
    assert scheduler.batch() == Batch(2, (2,), (0,))


def test_the_last_batches_admit_no_groups_for_later_ones() -> None:
    scheduler = GroupScheduler(OverlapLimits("stream", 2, 2, staleness=4, window=4))
    assert [event.group for event in scheduler.admit()] == [0, 1, 2, 3]


def test_a_resumed_run_with_less_staleness_than_its_groups_need_is_refused() -> None:
    wide = OverlapLimits("stream", 1, 9, staleness=4, window=4)
    rows: list[tuple[str, dict[str, Any]]] = [
        ("admit", {"group": g, "replaces": None}) for g in range(5)
    ]
    assert GroupScheduler.rebuild(wide, rows).admitted == 5
    with pytest.raises(ScheduleError, match="a staleness of at most 2"):
        GroupScheduler.rebuild(replace(wide, staleness=2, window=2), rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("admit", {"group": 0})], "without 'replaces'"),
        ([("admit", {"group": 1, "replaces": None})], "the next group is 0"),
        ([("start", {"group": 0, "version": 0})], "not pending"),
        ([("switch", {"version": 1})], "the weights are 0"),
        ([("batch", {"number": 1, "groups": [0], "versions": [0]})], "not ready"),
    ],
)
def test_a_log_that_contradicts_itself_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        GroupScheduler.rebuild(OverlapLimits("stream", 1, 9, 1, 1), rows)


def test_rows_of_other_kinds_and_other_keys_change_nothing() -> None:
    limits = OverlapLimits("stream", 1, 9, 1, 1)
    rows: list[tuple[str, dict[str, Any]]] = [
        ("eval", {"version": 0}),
        ("admit", {"group": 0, "replaces": None, "task": "a"}),
    ]
    assert GroupScheduler.rebuild(limits, rows).pending == {0: None}


@pytest.mark.parametrize(
    "wrong",
    [("none", 1, 1, 1, 1), ("step", 1, 1, 2, 1), ("stream", 1, 1, 1, 2), ("stream", 0, 1, 1, 1)],
)
def test_contradictory_limits_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"must|needs"):
        OverlapLimits(*wrong)


def test_only_as_many_groups_are_replaced_as_a_batch_may_have_spares() -> None:
    scheduler = GroupScheduler(OverlapLimits("none", 2, 9, spares=1))
    scheduler.admit()
    scheduler.start(0, 0)
    scheduler.start(1, 0)
    assert scheduler.replace(0).group == 2
    assert not scheduler.may_replace
    with pytest.raises(ScheduleError, match="no spare group is left"):
        scheduler.replace(1)
    assert scheduler.admitted == 3
    scheduler.ready(1)
    scheduler.start(2, 0)
    scheduler.ready(2)
    assert scheduler.batch() is not None
    assert scheduler.may_replace
