"""``routing_replay.keep_steps`` deletes the routing of steps that nothing trains again."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from conf.compose import compose
from conf.schema import Config
from runners.campaigns.overlap.events import Admit, Batch, Event, to_row
from runners.campaigns.routing_retention import delete_old_routing
from runners.records.ids import rollout_id, session_id
from runners.records.routing import TurnRouting
from runners.records.store.routing_files import PART_BYTES
from runners.records.store.run_store import RunStore
from tests.fakes.records import a_turn

ROUTED = TurnRouting(0, np.arange(12, dtype=np.uint8).reshape(3, 2, 2), 16, 7, 0)


def configured(*overrides: str) -> Config:
    return compose(["scenario=mixed", "routing_replay=rollout", "run.steps=20", *overrides])


def write(root: Path, config: Config, names: Iterable[str]) -> RunStore:
    """Write a session of each name into a part of its own, and one more, which nobody deletes."""
    store = RunStore.create(root / "run", config.model_dump(mode="json"))
    for number, name in enumerate([*names, "last"]):
        if number:
            newest = f"routing.{number - 1}.bin" if number > 1 else "routing.bin"
            os.truncate(store.run_dir / "arrays" / newest, PART_BYTES)
            store.close()
            store = RunStore.open(store.run_dir)
        store.add_session(name, {})
        store.add_turn(a_turn(name), ROUTED)
    return store


def named(split: str, step: int, group: int = 0, attempt: int = 0) -> str:
    return session_id(rollout_id(split, step, group, 0), attempt)


def count_parts(store: RunStore) -> int:
    return len(list((store.run_dir / "arrays").glob("routing*.bin")))


async def test_steps_of_the_newest_checkpoint_and_later_ones_stay(tmp_path: Path) -> None:
    config = configured("routing_replay.keep_steps=2")
    names = [named("train", step) for step in range(1, 7)]
    store = write(tmp_path, config, names)
    await delete_old_routing(config, store, 5)  # step 6 is not in a checkpoint yet
    assert store.routed_sessions() == {*names[3:], "last"}
    assert count_parts(store) == 4


async def test_attempts_and_evaluations_go_with_their_steps(tmp_path: Path) -> None:
    config = configured("routing_replay.keep_steps=1")
    names = [named("train", 1), named("train", 1, attempt=3), named("eval", 0), named("eval", 3)]
    store = write(tmp_path, config, [*names, "a-session-of-somebody"])
    await delete_old_routing(config, store, 3)
    assert store.routed_sessions() == {named("eval", 3), "a-session-of-somebody", "last"}


@pytest.mark.parametrize(
    "chosen", ["routing_replay.keep_steps=null", "routing_replay.keep_steps=9"]
)
async def test_nothing_is_deleted_without_a_key_or_before_so_many_steps(
    tmp_path: Path, chosen: str
) -> None:
    config = configured(chosen)
    store = write(tmp_path, config, [named("train", 1)])
    await delete_old_routing(config, store, 9)
    assert count_parts(store) == 2


async def test_with_a_schedule_a_group_goes_once_its_batch_is_trained(tmp_path: Path) -> None:
    """Group 1 of step 1 is trained in step 3 only, group 0 of step 2 was left out."""
    config = configured(
        "routing_replay.keep_steps=1", "run.overlap=stream", "run.tasks_per_step=2",
        "trainer.correction.truncate=token",
    )  # fmt: skip
    names = [named("train", step, group) for step in (1, 2, 3) for group in (0, 1)]
    store = write(tmp_path, config, names)
    events: list[Event] = [
        Admit(4, replaces=2),
        Batch(1, (0,), (0,)),
        Batch(2, (3,), (0,)),
        Admit(5, replaces=4),
        Batch(3, (1,), (1,)),
    ]
    for event in events:
        store.log_schedule(*to_row(event))
    await delete_old_routing(config, store, 3)
    assert store.routed_sessions() == {names[1], names[4], names[5], "last"}
    await delete_old_routing(config, store, 4)
    assert store.routed_sessions() == {names[5], "last"}


async def test_a_file_that_cannot_be_deleted_is_tried_again(tmp_path: Path) -> None:
    config = configured("routing_replay.keep_steps=1")
    store = write(tmp_path, config, [named("train", 1), named("train", 2)])
    file = store.run_dir / "arrays" / "routing.bin"
    file.rename(file.with_name("kept"))
    file.mkdir()  # which no unlink removes
    await delete_old_routing(config, store, 2)
    assert store.routed_sessions() == {named("train", 2), "last"}
    file.rmdir()
    file.with_name("kept").rename(file)
    await delete_old_routing(config, store, 2)
    assert not file.exists()
