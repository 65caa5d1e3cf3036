"""What a job keeps when it continues from a checkpoint that is older than what it has done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conf.compose import compose
from conf.schema import Config
from runners.campaigns.overlap.events import Admit, Batch, Event, Ready, Start, to_row
from runners.campaigns.slime.data_source import RunDataSource
from runners.campaigns.slime.resumption import rewind_job
from runners.records.routing import TurnRouting
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from tests.fakes.records import CONFIG, a_rollout, a_turn

SLIME = (
    *("trainer=slime", "model=qwen3_30b_a3b", "model.path=/weights", "launch=slurm"),
    *("launch.shared_dir=/shared", "task=jsonl", "task.path=/t.jsonl", "run.tasks_per_step=2"),
)


def config(overlap: str) -> Config:
    nodes = () if overlap == "none" else ("trainer.rollout_nodes=4",)
    return compose([*SLIME, f"run.overlap={overlap}", *nodes])


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "run", CONFIG)


def add(store: RunStore, step: int, group: int, *versions: int, reward: float | None = 1.0) -> str:
    """Store a rollout whose turns were sampled by these weights; return its name."""
    record = a_rollout(f"train-{step:06}-{group:02}-00", reward=reward)
    store.add_session(record.session_id, {})
    for index, version in enumerate(versions):
        store.add_turn(a_turn(record.session_id, index, weight_version=version))
    store.put_rollout(record)
    return record.rollout_id


def kept(store: RunStore) -> set[str]:
    return {record.rollout_id for record in store.rollouts(counts=True)}


def test_slime_s_data_source_begins_where_the_checkpoint_ends_and_saves_nothing() -> None:
    source = RunDataSource(object())
    source.load(-1)
    assert source.first_rollout == 0
    source.load(9)
    source.save(11)
    assert source.first_rollout == 10
    with pytest.raises(RuntimeError, match="--rollout-function-path"):
        source.get_samples(1)


def test_turns_are_kept_that_the_checkpoint_s_weights_sampled(store: RunStore) -> None:
    done = add(store, 2, 0, 1)
    next_one = add(store, 3, 0, 2, 2)
    add(store, 3, 1, 2, reward=None)
    add(store, 4, 0, 3)  # weights that are lost
    for step in (1, 2, 3):
        store.begin_step(step, ["t"])
        store.finish_step(step, {})
        store.finish_evaluation(step, {})
    rewind_job(config("none"), store, 2)
    assert kept(store) == {done, next_one}
    assert [row.step for row in store.steps()] == [1, 2]
    assert [row.step for row in store.evaluations()] == [1, 2]


def test_a_rollout_whose_routing_was_deleted_is_made_anew(store: RunStore) -> None:
    """Slime has loaded a checkpoint that is older than ``routing_replay.keep_steps`` covers."""
    add(store, 3, 0, 2)
    whole = a_rollout("train-000003-01-00", reward=1.0)
    store.add_session(whole.session_id, {})
    routing = TurnRouting(0, np.arange(12, dtype=np.uint8).reshape(3, 2, 2), 16, 7, 2)
    store.add_turn(a_turn(whole.session_id, 0, weight_version=2), routing)
    store.put_rollout(whole)
    replayed = compose([*SLIME, "routing_replay=rollout", "routing_replay.keep_steps=1"])
    rewind_job(replayed, store, 2)
    assert kept(store) == {whole.rollout_id}


def test_with_step_the_batches_of_both_last_weights_are_kept(store: RunStore) -> None:
    trained_next, collected = add(store, 3, 0, 1), add(store, 4, 0, 2)
    add(store, 4, 1, 1)  # two updates old when it would be trained
    add(store, 5, 0, 3)
    rewind_job(config("step"), store, 2)
    assert kept(store) == {trained_next, collected}


def log(store: RunStore, *events: Event) -> None:
    for event in events:
        kind, body = to_row(event)
        store.log_schedule(kind, body | {"task": "t"})


def test_a_stream_continues_with_the_groups_that_were_in_flight_at_its_checkpoint(
    store: RunStore,
) -> None:
    log(store, *map(Admit, range(4)), *(Start(group, 0) for group in range(3)))
    log(store, Ready(0), Ready(1), Batch(1, (0, 1), (0, 0)))
    log(store, Ready(2), Start(3, 1), Ready(3), Batch(2, (2, 3), (0, 1)))
    trained = {add(store, 1, 0, 0), add(store, 1, 1, 0, reward=None)}
    in_flight = add(store, 2, 0, 0, 1)  # group 2 ended with the weights of the checkpoint
    add(store, 2, 1, 1)  # group 3 began after the batch, as nobody knows any more
    rewind_job(config("stream"), store, 1)
    assert kept(store) == trained | {in_flight}
    assert [kind for kind, _ in store.schedule()][-1] == "batch"
    assert len(store.schedule()) == 10
    rewind_job(config("stream"), store, 0)
    assert (kept(store), store.schedule()) == (set(), [])


def test_a_group_in_flight_that_lost_weights_have_sampled_begins_anew(store: RunStore) -> None:
    log(store, *map(Admit, range(3)), *(Start(group, 0) for group in range(3)))
    log(store, Ready(0), Ready(1), Batch(1, (0, 1), (0, 0)))
    add(store, 2, 0, 0, 2)
    rewind_job(config("stream"), store, 1)
    assert not kept(store)


def test_a_complete_group_of_a_stream_whose_routing_was_deleted_begins_anew(
    store: RunStore,
) -> None:
    log(store, *map(Admit, range(4)), *(Start(group, 0) for group in range(4)))
    log(store, Ready(0), Ready(1), Ready(2), Batch(1, (0, 1), (0, 0)), Ready(3))
    log(store, Batch(2, (2, 3), (0, 0)))
    trained = {add(store, 1, 0, 0), add(store, 1, 1, 0)}
    add(store, 2, 0, 0)
    nodes = ("run.overlap=stream", "trainer.rollout_nodes=4")
    rewind_job(compose([*SLIME, *nodes, "routing_replay=rollout"]), store, 1)
    assert kept(store) == trained
    assert [body["group"] for kind, body in store.schedule() if kind == "ready"] == [0, 1]


def test_a_checkpoint_without_its_batch_is_refused(store: RunStore) -> None:
    with pytest.raises(StoreError, match="has no batch 3"):
        rewind_job(config("stream"), store, 3)
