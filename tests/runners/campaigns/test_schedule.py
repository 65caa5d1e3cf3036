"""The schedule: a pure function of seed and step."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.compose import compose
from conf.errors import ConfigError
from conf.schema import Config
from runners.campaigns.sampler import StepSampler
from runners.campaigns.schedule import evaluation_batch, evaluation_due, step_tasks
from runners.records.store.run_store import RunStore
from runners.rollouts.contract import RolloutSpec
from runners.tasks.contract import Task
from runners.tasks.sets.mixture import draws


def make_tasks(count: int) -> list[Task]:
    """Tasks that differ in nothing but their id."""
    return [
        Task(f"task-{index}", "train", Path("nowhere"), "0" * 40, "", (), (), (), "", "operator")
        for index in range(count)
    ]


@cache
def config(*overrides: str) -> Config:
    """A composed config."""
    return compose(["run.tasks_per_step=4", "run.rollouts_per_task=3", *overrides])


def no_store() -> RunStore:
    """Return a store that is never asked: ``epoch`` needs no history."""
    return cast("RunStore", None)


def training_batch(config: Config, tasks: list[Task], step: int) -> list[RolloutSpec]:
    """Return a step's rollouts of ``run.sampler=epoch``."""
    sampler = StepSampler(config, no_store(), tasks, lambda *_: None)
    return asyncio.run(sampler.batch(step))


def spare_group(config: Config, tasks: list[Task], step: int, number: int) -> list[RolloutSpec]:
    """Return a step's spare group of ``run.sampler=epoch``."""
    sampler = StepSampler(config, no_store(), tasks, lambda *_: None)
    return asyncio.run(sampler.spare(step, number, {t.id for t in step_tasks(config, tasks, step)}))


def test_a_step_has_its_groups_each_with_its_members() -> None:
    specs = training_batch(config(), make_tasks(10), 7)
    assert [(spec.group, spec.member) for spec in specs] == [
        (g, m) for g in range(4) for m in range(3)
    ]
    assert len({spec.rollout_id for spec in specs}) == len({spec.seed for spec in specs}) == 12
    assert len({spec.task.id for spec in specs}) == 4


def test_a_pass_deals_every_task_once_and_the_next_pass_in_another_order() -> None:
    tasks = make_tasks(8)
    dealt = [
        spec.task.id for step in range(1, 5) for spec in training_batch(config(), tasks, step)[::3]
    ]
    first, second = dealt[:8], dealt[8:]
    assert Counter(first) == Counter(second) == Counter(task.id for task in tasks)
    assert first != second


def test_the_schedule_depends_on_the_seed_and_nothing_else() -> None:
    tasks = make_tasks(10)
    assert training_batch(config("seed=1"), tasks, 3) == training_batch(config("seed=1"), tasks, 3)
    assert training_batch(config("seed=1"), tasks, 3) != training_batch(config("seed=2"), tasks, 3)


def test_a_spare_group_works_on_a_task_that_the_step_does_not_have() -> None:
    tasks = make_tasks(10)
    step = training_batch(config(), tasks, 2)
    spares = [spare_group(config(), tasks, 2, number) for number in range(6)]
    assert spares == [spare_group(config(), tasks, 2, number) for number in range(6)]
    assert [{spec.group for spec in spare} for spare in spares] == [{4 + n} for n in range(6)]
    used = [spare[0].task.id for spare in spares]
    assert len(set(used)) == 6
    assert set(used).isdisjoint(spec.task.id for spec in step)
    everything = [spec for spare in [step, *spares] for spec in spare]
    assert len({spec.rollout_id for spec in everything}) == len(everything)


def test_a_spare_group_repeats_a_task_only_when_there_is_no_other() -> None:
    tasks = make_tasks(4)
    assert spare_group(config(), tasks, 1, 9)[0].task in tasks


MIXTURE = "task.sets=[{path:a.jsonl,weight:3},{path:b.jsonl,weight:1,name:rare}]"


def mix(common: int, rare: int) -> list[Task]:
    """Tasks of two sets, the rows of one after those of the other."""
    return [
        replace(task, id=f"{name}-{task.id}", set_name=name)
        for name, count in (("a", common), ("rare", rare))
        for task in make_tasks(count)
    ]


def drawn(settings: Config, tasks: list[Task], steps: range) -> list[Task]:
    return [task for step in steps for task in step_tasks(settings, tasks, step)]


@given(st.integers(1, 9), st.integers(1, 60), st.integers(4, 30), st.integers(2, 12))
@settings(max_examples=40)
def test_a_mixture_has_its_shares_and_repeats_nothing_within_a_pass(
    per_step: int, steps: int, common: int, rare: int
) -> None:
    mixture = config("task=mixture", MIXTURE).model_copy()
    mixture = mixture.model_copy(
        update={"run": mixture.run.model_copy(update={"tasks_per_step": per_step})}
    )
    tasks = drawn(mixture, mix(common, rare), range(1, steps + 1))
    for name, share, size in (("a", 0.75, common), ("rare", 0.25, rare)):
        of_set = [task.id for task in tasks if task.set_name == name]
        assert abs(len(of_set) - share * len(tasks)) < 1
        for lap in range(0, len(of_set), size):
            one_pass = of_set[lap : lap + size]
            assert len(set(one_pass)) == len(one_pass)


def test_the_sets_of_a_mixture_have_orders_of_their_own() -> None:
    mixture, tasks = config("task=mixture", MIXTURE.replace("weight:3", "weight:1")), mix(20, 20)
    orders: dict[str, list[str]] = {"a": [], "rare": []}
    for task in drawn(mixture, tasks, range(1, 11)):
        orders[task.set_name].append(task.id.removeprefix(f"{task.set_name}-"))
    assert sorted(orders["a"]) == sorted(orders["rare"]), "one pass of each"
    assert orders["a"] != orders["rare"]


def test_a_step_of_a_mixture_is_a_function_of_the_step_alone() -> None:
    mixture, tasks = config("task=mixture", MIXTURE), mix(9, 5)
    forwards = [training_batch(mixture, tasks, step) for step in range(1, 30)]
    draws.cache_clear()  # as after a resume
    assert training_batch(mixture, tasks, 29) == forwards[-1]
    assert training_batch(mixture, tasks, 2) == forwards[1]


def test_spare_groups_of_a_mixture_are_of_its_sets_by_weight() -> None:
    mixture, tasks = config("task=mixture", MIXTURE), mix(40, 40)
    spares = [spare_group(mixture, tasks, step, n)[0].task for step in range(200) for n in (0, 1)]
    assert 0.15 < sum(task.set_name == "rare" for task in spares) / len(spares) < 0.35
    pairs = zip(spares[::2], spares[1::2], strict=True)
    assert all(first.id != second.id for first, second in pairs)


def test_evaluations_draw_the_same_dice_before_and_after() -> None:
    tasks = make_tasks(6)
    small = config("run.eval_tasks=5")
    before, after = evaluation_batch(small, tasks, 0), evaluation_batch(small, tasks, 40)
    assert [spec.seed for spec in before] == [spec.seed for spec in after]
    assert {spec.rollout_id for spec in before}.isdisjoint(spec.rollout_id for spec in after)
    assert len(before) == 5


def test_more_attempts_of_an_evaluation_leave_the_first_ones_as_they_are() -> None:
    tasks = make_tasks(6)
    once, often = config("run.eval_tasks=3"), config("run.eval_tasks=3", "run.eval_attempts=4")
    first, specs = evaluation_batch(once, tasks, 5), evaluation_batch(often, tasks, 5)
    assert specs[:3] == first
    assert [(spec.group, spec.member) for spec in specs] == [
        (group, member) for member in range(4) for group in range(3)
    ]
    assert len({spec.seed for spec in specs}) == len({spec.rollout_id for spec in specs}) == 12
    assert [s.seed for s in specs] == [s.seed for s in evaluation_batch(often, tasks, 60)]


def test_attempts_that_would_all_be_the_same_are_refused() -> None:
    with pytest.raises(ConfigError, match="all attempts at a task would be the same"):
        config("run.eval_attempts=2", "sampling.eval_temperature=0.0")
    with pytest.raises(ConfigError, match=r"run\.eval_attempts=2 and run\.eval_tasks=0: nothing"):
        config("run.eval_attempts=2", "run.eval_tasks=0")


@pytest.mark.parametrize(("every", "due"), [(0, {0, 6}), (2, {0, 2, 4, 6}), (4, {0, 4, 6})])
def test_the_first_and_last_policy_are_always_evaluated(every: int, due: set[int]) -> None:
    settings = config("run.steps=6", f"run.eval_every={every}")
    assert {step for step in range(7) if evaluation_due(settings, step)} == due
    assert not evaluation_due(config("run.eval_tasks=0"), 0)
