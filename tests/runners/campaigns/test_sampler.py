"""A sampler of the user's chooses the tasks of steps, and a step keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from conf.schema import Config
from runners.campaigns.sampler import StepSampler, check_choice
from runners.campaigns.schedule import step_tasks
from runners.records.store.run_store import RunStore
from runners.rollouts.contract import RolloutSpec
from runners.system.plugins.calls import PluginFailedError
from runners.system.plugins.loading import PluginError
from runners.tasks.contract import Task
from runners.tasks.sets.task_sampler import TaskDraw, TaskHistory
from tests.fakes.records import CONFIG, a_rollout

SOURCE = """
def least_solved(draw):
    ranked = sorted(draw.tasks, key=lambda each: (each.solved, each.graded, each.task.id))
    return [each.task.id for each in ranked[: draw.count]]

async def by_facts(draw):
    facts = [(e.task.id, e.graded, e.solved, e.last_step) for e in draw.tasks if e.last_step]
    assert facts == [("t1", 2, 1, 1), ("t4", 0, 0, 2)], facts
    assert (draw.seed, draw.step, draw.count, draw.spare) == (5, 3, 2, None)
    return ("t3", "t0")

def raises(draw): raise LookupError("no curriculum")
def unknown(draw): return ["t0", "t99"]
def twice(draw): return ["t0", "t0"]
def few(draw): return ["t0"]
def text(draw): return "t0"
def wrong(draw, step): return []
"""
TASKS = [
    Task(f"t{n}", "train", Path("nowhere"), "0" * 40, "", (), (), (), "", "operator")
    for n in range(6)
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    (tmp_path / "mine.py").write_text(SOURCE)
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        yield store


def configure(store: RunStore, name: str) -> Config:
    target = f"run.sampler={store.run_dir.parent / 'mine.py'}:{name}"
    return compose(["run.tasks_per_step=2", "run.rollouts_per_task=2", "seed=5", target])


def note(store: RunStore, step: int, group: int, task: str, **changes: object) -> None:
    name = f"train-{step:06}-{group:03}-{len(store.rollouts()):02}"
    store.put_rollout(
        a_rollout(name, step=step, group=group, task_id=task, split="train", **changes)
    )


def names(specs: list[RolloutSpec]) -> list[str]:
    return [spec.task.id for spec in specs if spec.member == 0]


class Steps:
    """A sampler, and the steps at which it failed."""

    def __init__(self, store: RunStore, name: str, config: Config | None = None) -> None:
        self.failed: dict[int, str] = {}
        self._sampler = StepSampler(
            config or configure(store, name),
            store,
            TASKS,
            lambda step, error: self.failed.update({step: str(error)}),
        )

    def batch(self, step: int) -> list[RolloutSpec]:
        return asyncio.run(self._sampler.batch(step))

    def spare(self, step: int, number: int, used: set[str]) -> list[RolloutSpec]:
        return asyncio.run(self._sampler.spare(step, number, used))


def test_a_sampler_is_told_what_the_steps_before_found(store: RunStore) -> None:
    note(store, 1, 0, "t1", solved=True)
    note(store, 1, 0, "t1", solved=False)
    note(store, 1, 0, "t1", solved=True, counts=False)
    note(store, 2, 0, "t4", solved=None)
    note(store, 3, 4, "t5", solved=True)
    steps = Steps(store, "by_facts")
    specs = steps.batch(3)
    assert (names(specs), steps.failed) == (["t3", "t0"], {})
    assert [(spec.group, spec.member) for spec in specs] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_group_that_has_begun_keeps_its_task(store: RunStore) -> None:
    assert names(Steps(store, "least_solved").batch(1)) == ["t0", "t1"]
    note(store, 1, 1, "t5", solved=True)
    note(store, 1, 2, "t4", solved=True)
    steps = Steps(store, "least_solved")
    assert names(steps.batch(1)) == ["t0", "t5"]
    assert names(steps.spare(1, 0, {"t0", "t5"})) == ["t4"]


def test_a_spare_group_has_a_task_that_the_step_does_not_have(store: RunStore) -> None:
    steps = Steps(store, "least_solved")
    specs = steps.spare(1, 1, {"t0", "t1"})
    assert (names(specs), {spec.group for spec in specs}) == (["t2"], {3})
    everything = {task.id for task in TASKS}
    assert names(steps.spare(1, 1, everything)) == ["t0"], "there is no other"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", "run.sampler raised LookupError: no curriculum"),
        ("unknown", "returned ['t0', 't99'], not 2 different ids"),
        ("twice", "returned ['t0', 't0'], not 2 different ids"),
        ("few", "returned ['t0'], not 2 different ids"),
        ("text", "returned 't0', not 2 different ids"),
    ],
)
def test_a_sampler_that_fails_costs_its_choice_and_no_step(
    store: RunStore, name: str, words: str
) -> None:
    steps = Steps(store, name)
    expected = step_tasks(configure(store, name), TASKS, 2)
    assert names(steps.batch(2)) == [task.id for task in expected]
    assert words in steps.failed[2]


def test_a_task_comes_twice_only_where_there_are_too_few() -> None:
    histories = tuple(TaskHistory(task, 0, 0, 0) for task in TASKS[:2])
    draw = TaskDraw(seed=0, step=1, count=3, tasks=histories, spare=None)
    assert check_choice(draw, ["t1", "t0", "t1"]) == ["t1", "t0", "t1"]
    for wrong in (["t0", "t1", "t2"], ["t0", "t0", "t0"]):
        with pytest.raises(PluginFailedError, match="not 3 different ids"):
            check_choice(draw, wrong)


def test_a_wrong_sampler_is_refused_before_the_run(store: RunStore) -> None:
    with pytest.raises(PluginError, match="is no TaskSampler: it takes"):
        Steps(store, "wrong")
    with pytest.raises(ConfigError, match="did you mean epoch"):
        compose(["run.sampler=epochs"])


CURRICULUM = 'run.sampler={target: "agentrl:Curriculum", options: {floor: 0.0, sharpness: 40.0}}'


def test_the_curriculum_is_built_in_and_takes_options_as_a_plug_in_does(store: RunStore) -> None:
    for name, solved in (("t0", 0), ("t1", 2), ("t2", 4), ("t3", 0), ("t4", 4), ("t5", 4)):
        for member in range(4):
            note(store, 1, int(name[1]), name, solved=member < solved)
    small = ["run.tasks_per_step=1", "run.rollouts_per_task=2", "rollout.replace_flat=true"]
    for seed in range(8):
        sharp = Steps(store, "", compose([*small, CURRICULUM, f"seed={seed}"]))
        assert names(sharp.batch(2)) == ["t1"], "solved half of the time"
        assert names(sharp.spare(2, 0, {"t1"})) != ["t1"]
        assert sharp.failed == {}
    built_in = [Steps(store, "", compose([*small, "run.sampler=curriculum"])) for _ in range(2)]
    first, second = ([names(steps.batch(step)) for step in range(2, 80)] for steps in built_in)
    assert first == second
    assert len({name for chosen in first for name in chosen}) == len(TASKS), "all come back"
    with pytest.raises(PluginError, match=r"run\.sampler.*floor"):
        Steps(store, "", compose([*small, CURRICULUM.replace("0.0", "2.0")]))


def test_the_curriculum_keeps_the_weights_of_a_mixture(store: RunStore) -> None:
    sets = "task.sets=[{path:a.jsonl,weight:3},{path:b.jsonl,weight:1,name:rare}]"
    config = compose(["task=mixture", sets, "run.tasks_per_step=3", "run.sampler=curriculum"])
    tasks = [replace(task, set_name="a" if n < 4 else "rare") for n, task in enumerate(TASKS)]
    sampler = StepSampler(config, store, tasks, lambda *_: None)
    for step in range(1, 9):
        wanted = [task.set_name for task in step_tasks(config, tasks, step)]
        specs = asyncio.run(sampler.batch(step))
        assert [spec.task.set_name for spec in specs if spec.member == 0] == wanted
