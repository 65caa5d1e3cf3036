"""Plan an evaluation's rollouts; an enlarged evaluation keeps them."""

from __future__ import annotations

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from runners.campaigns.evaluation.benchmarks import BENCHMARKS, find_benchmark
from runners.campaigns.evaluation.plan import plan_rollouts, select_tasks
from runners.campaigns.schedule import evaluation_batch
from tests.runners.campaigns.evaluation.conftest import a_benchmark, a_config, a_task

TEN = a_benchmark(*(a_task(f"{'even' if n % 2 == 0 else 'odd'}-{n}") for n in range(10)))


def chosen(*overrides: str) -> list[str]:
    return [i.task.id for i in select_tasks(TEN, a_config(*overrides)).instances]


def test_glob_offset_and_number_apply_in_this_order() -> None:
    assert len(chosen()) == 10
    assert chosen("eval.ids='odd-*'") == [f"odd-{n}" for n in (1, 3, 5, 7, 9)]
    assert chosen("eval.ids='odd-*'", "eval.offset=1", "eval.tasks=2") == ["odd-3", "odd-5"]
    assert chosen("eval.offset=8", "eval.tasks=5") == ["even-8", "odd-9"]


@pytest.mark.parametrize("override", ["eval.ids=none", "eval.offset=10"])
def test_a_selection_without_tasks_is_refused_with_the_numbers(override: str) -> None:
    with pytest.raises(ConfigError, match=r"select no task \(\d+ of 10 tasks of given match"):
        chosen(override)


def test_every_task_is_planned_once_before_any_is_planned_twice() -> None:
    config = a_config("eval.tasks=2", "eval.attempts_per_task=2")
    specs = plan_rollouts(select_tasks(TEN, config).instances, config)
    assert [(spec.task.id, spec.member) for spec in specs] == [
        ("even-0", 0), ("odd-1", 0), ("even-0", 1), ("odd-1", 1),
    ]  # fmt: skip
    assert len({spec.rollout_id for spec in specs}) == len({spec.seed for spec in specs}) == 4
    assert {spec.temperature for spec in specs} == {config.sampling.eval_temperature}


def test_an_enlarged_evaluation_keeps_its_rollouts() -> None:
    small = a_config("eval.ids='odd-*'", "eval.tasks=2")
    large = a_config("eval.attempts_per_task=3")
    have = {s.rollout_id: s for s in plan_rollouts(select_tasks(TEN, large).instances, large)}
    for spec in plan_rollouts(select_tasks(TEN, small).instances, small):
        assert have[spec.rollout_id] == spec


def test_the_first_samples_are_those_of_a_campaign_s_evaluation() -> None:
    config = a_config()
    tasks = TEN.tasks(config)
    campaign = {(s.task.id, s.seed) for s in evaluation_batch(config, tasks, 0)}
    ours = {(s.task.id, s.seed) for s in plan_rollouts(select_tasks(TEN, config).instances, config)}
    assert ours == campaign


def test_a_mistyped_benchmark_is_named_with_its_fix() -> None:
    with pytest.raises(ConfigError, match=r"bugfx is not a benchmark: did you mean bugfix\?"):
        find_benchmark("bugfx")


def test_every_benchmark_is_filed_under_its_name_and_is_about_a_task_group() -> None:
    for name, benchmark in BENCHMARKS.items():
        assert benchmark.name == name
        assert compose([f"task={benchmark.task}"]).task.kind == benchmark.task
