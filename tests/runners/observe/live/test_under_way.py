"""Rollouts under way, of runs whose groups are trained in another step than they were dealt for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runners.observe.live.run_poller import RunPoller
from runners.observe.live.status import read_status
from runners.observe.live.under_way import RolloutsUnderWay, read_overlapped
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout

GROUPS, MEMBERS = 2, 2


def make_run(run_dir: Path, supervised: int = 0) -> RunStore:
    keys = {"steps": 2 + supervised, "tasks_per_step": GROUPS, "rollouts_per_task": MEMBERS}
    run = {**keys, "overlap": "stream", "eval_tasks": 3, "eval_attempts": 2}
    trainer = {"kind": "local", "sft": {"steps": supervised}}
    store = RunStore.create(run_dir, CONFIG | {"run": run, "trainer": trainer})
    store.set_state(State.RUNNING)
    for step in range(1, supervised + 1):
        store.begin_step(step, [])
        store.finish_step(step, {})
    return store


def admit(store: RunStore, group: int, replaces: int | None = None) -> None:
    store.log_schedule("admit", {"group": group, "replaces": replaces, "task": "t"})


def finish(store: RunStore, group: int, before: int = 0) -> None:
    step, number = divmod(group, GROUPS)
    step += before + 1
    for member in range(MEMBERS):
        name = f"train-{step:06}-{number:02}-{member:02}"
        store.put_rollout(a_rollout(name, step=step, group=number, member=member))


def train(store: RunStore, step: int, number: int, groups: list[int]) -> None:
    body: dict[str, Any] = {"number": number, "groups": groups, "versions": [0] * len(groups)}
    store.log_batch(step, ["t"] * len(groups), "batch", body)


@pytest.mark.parametrize("supervised", [0, 3])
def test_a_group_is_under_way_until_the_step_that_trains_it_is_finished(
    tmp_path: Path, supervised: int
) -> None:
    with make_run(tmp_path / "run", supervised) as store:
        assert read_overlapped(store) is None
        for group in range(4):
            admit(store, group)
        finish(store, 0, supervised)
        finish(store, 2, supervised)
        assert read_overlapped(store) == RolloutsUnderWay(done=4, size=8)
        admit(store, 4, replaces=1)  # a spare group: the deal of a step that the run does not have
        finish(store, 1, supervised)
        train(store, supervised + 1, 1, [0, 2])
        assert read_overlapped(store) == RolloutsUnderWay(done=6, size=10)
        store.finish_step(supervised + 1, {})
        assert read_overlapped(store) == RolloutsUnderWay(done=0, size=4)
        for group in (3, 4):
            finish(store, group, supervised)
        assert read_overlapped(store) == RolloutsUnderWay(done=4, size=4)
        assert read_status(store.run_dir).step_rollouts == 4
        train(store, supervised + 2, 2, [3, 4])
        store.finish_step(supervised + 2, {})
        assert read_overlapped(store) == RolloutsUnderWay(done=0, size=0)
        assert read_status(store.run_dir).step_rollouts == 0


def test_a_watched_run_shows_the_rollouts_of_its_groups_and_those_of_an_evaluation(
    tmp_path: Path,
) -> None:
    with make_run(tmp_path / "run") as store:
        poller = RunPoller(store)
        shown = poller.progress

        def poll() -> tuple[str, int, int]:
            poller.poll()
            return shown.phase, shown.batch_done, shown.batch_size

        store.put_rollout(a_rollout("eval-000000-00-00", split="eval", step=0))
        assert poll() == ("evaluation", 1, 6)
        store.finish_evaluation(0, {"solve_rate": 0.5})
        for group in range(4):
            admit(store, group)
        finish(store, 1)
        finish(store, 2)
        assert poll() == ("rollouts", 4, 8)
        train(store, 1, 1, [1, 2])
        store.finish_step(1, {"train/reward_mean": 0.5, "train/solve_rate": 0.5, "time/step_s": 1})
        finish(store, 0)
        assert poll() == ("rollouts", 2, 4)
        store.put_rollout(a_rollout("eval-000001-00-00", split="eval", step=1))
        assert poll() == ("evaluation", 1, 6)
