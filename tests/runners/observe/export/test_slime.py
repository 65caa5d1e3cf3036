from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runners.observe.export.run_dump import dump
from runners.observe.export.slime import ROLLOUTS_PER_FILE, read_samples
from runners.records.graph import TurnGraph
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import Turn
from runners.records.routing import RoutingShape, TurnRouting, build_turn_routing
from runners.records.store.run_store import RunStore
from tests.fakes.records import (
    CONFIG,
    a_rollout,
    a_turn,
    branched_run,
    branched_turns,
    example_run,
    write_session,
)

SAMPLE = {
    *("group_index", "index", "rollout_id", "prompt", "tokens", "response", "response_length"),
    *("label", "reward", "loss_mask", "weight_versions", "rollout_log_probs", "remove_sample"),
    *("status", "metadata", "session_id"),
}
"""Fields of slime's ``Sample`` that an export sets; the others keep their defaults."""


def samples(store: RunStore, out: Path) -> list[dict[str, Any]]:
    dump(store, out, formats=("slime", "jsonl"), decode=lambda ids: " ".join(map(str, ids)))
    return list(read_samples(out / "slime"))


def test_a_segment_is_a_sample_with_slimes_fields(tmp_path: Path) -> None:
    with branched_run(tmp_path / "run") as store:
        found = samples(store, tmp_path)
    assert all(set(sample) == SAMPLE for sample in found)
    kinds = [sample["metadata"]["kind"] for sample in found]
    assert kinds == ["side", "edit", "subagent", "wipe", "compaction", "final"]
    wipe, retaken = found[1], found[3]
    assert wipe["tokens"].tolist() == [17, 18, 19, 20, 21, 22, 23, 36, 37, 38, 39, 40]
    assert wipe["loss_mask"].tolist() == [1, 1, 1, 0, 0, 1, 1, 1]
    assert wipe["rollout_log_probs"].tolist() == pytest.approx(
        [-0.05, -0.7, -2.5, 0, 0, -0.05, -0.7, -2.5]
    )
    assert wipe["response"] == "21 22 23 36 37 38 39 40"
    assert [message["role"] for message in wipe["prompt"]] == ["system", "user"]
    assert retaken["response_length"] == 3, "what it shares with its sibling is its prompt"
    assert [message["role"] for message in retaken["prompt"]] == [
        *("system", "user", "assistant", "tool")
    ]
    assert [sample["remove_sample"] for sample in found] == [True, *[False] * 5]


def test_masks_and_logprobs_cover_the_response_region_and_train_each_token_once(
    tmp_path: Path,
) -> None:
    with branched_run(tmp_path / "run", 3) as store:
        found = samples(store, tmp_path)
    records = [json.loads(line) for line in (tmp_path / "trajectories.jsonl").open()]
    for number, record in enumerate(records):
        siblings = [sample for sample in found if sample["rollout_id"] == number]
        assert len(siblings) == len(record["segments"])
        assert sum(int(s["loss_mask"].sum()) for s in siblings) == record["tokens"]["sampled"]
        for sample, segment in zip(siblings, record["segments"], strict=True):
            region = sample["response_length"]
            assert len(sample["loss_mask"]) == len(sample["rollout_log_probs"]) == region
            assert sample["tokens"].tolist() == segment["tokens"]
            assert sample["loss_mask"].tolist() == segment["loss_mask"][-region:]
            assert not any(segment["loss_mask"][:-region])
            assert sample["loss_mask"][0] == 1
    assert [sample["index"] for sample in found] == list(range(18))


def test_groups_are_numbered_through_and_arrays_are_split_over_files(tmp_path: Path) -> None:
    rollouts = ROLLOUTS_PER_FILE + 1
    with branched_run(tmp_path / "run", rollouts) as store:
        found = samples(store, tmp_path)
    assert len(found) == 6 * rollouts
    assert {s["rollout_id"]: s["group_index"] for s in found} == {
        n: n // 8 for n in range(rollouts)
    }
    assert sorted(path.name for path in (tmp_path / "slime").iterdir()) == [
        *("arrays-00000.npz", "arrays-00001.npz", "samples.jsonl")
    ]
    with np.load(tmp_path / "slime" / "arrays-00001.npz", allow_pickle=False) as arrays:
        assert arrays[f"{6 * ROLLOUTS_PER_FILE}/tokens"].dtype == np.int32


def test_a_rollout_without_a_grade_has_no_reward_and_is_removed(tmp_path: Path) -> None:
    failed = Outcome(OutcomeCode.GRADER_TIMEOUT, Stage.GRADE)
    cut = a_turn("train-000001-00-01-a0", finish_reason="length")
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for record, turn in (
            (a_rollout(outcome=failed, reward=None, solved=None), a_turn()),
            (a_rollout("train-000001-00-01"), cut),
            (a_rollout("train-000001-00-02"), replace(cut, output_ids=cut.output_ids[:0])),
        ):
            store.add_session(record.session_id, {})
            logprobs = turn.output_logprobs[: len(turn.output_ids)]
            store.add_turn(replace(turn, session_id=record.session_id, output_logprobs=logprobs))
            store.put_rollout(record)
        found = samples(store, tmp_path)
    values = [(s["status"], s["reward"], s["remove_sample"]) for s in found]
    assert values == [("failed", None, True), ("truncated", 1.0, False)]


def test_a_lost_rollout_has_no_sample(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        found = samples(store, tmp_path)
    assert [sample["metadata"]["member"] for sample in found] == [0, 1, 2]


SHAPE = RoutingShape(layers=2, top_k=2, experts=8, routed=(1,))


def rows_of(turn: Turn, path: np.ndarray, start: int) -> TurnRouting:
    """Return routing that says which turn it is of: experts 2 · index and the next."""
    size = (len(path) - 1 - start, SHAPE.layers, SHAPE.top_k)
    experts = np.broadcast_to([2 * turn.index % 8, 2 * turn.index % 8 + 1], size)
    return build_turn_routing(
        experts.astype(np.int32).ravel(), path, start, SHAPE, turn.weight_version
    )


def routed_run(run_dir: Path, without: int) -> RunStore:
    """Make a run of one branched rollout, one of whose turns has no routing, and one without."""
    store = RunStore.create(run_dir, CONFIG)
    graph, held = TurnGraph(), dict[int, int]()
    record, bare = a_rollout(turns=8), a_rollout("train-000001-00-01")
    store.add_session(record.session_id, {})
    for turn in branched_turns(record.session_id):
        path = graph.add(turn).tokens()
        start = 0 if turn.parent is None else held[turn.parent]
        held[turn.index] = start if turn.index == without else len(path) - 1
        rows = None if turn.index == without else rows_of(turn, path, start)
        store.add_turn(turn, rows)
    store.put_rollout(record)
    write_session(store, bare.session_id, 1)
    store.put_rollout(bare)
    return store


def test_routing_comes_in_slimes_layout_for_every_sample_or_for_none(tmp_path: Path) -> None:
    with routed_run(tmp_path / "run", without=1) as store:
        found = samples(store, tmp_path)
    assert {*found[0]} == SAMPLE | {"rollout_routed_experts"}
    for sample in found:
        experts = sample["rollout_routed_experts"]
        assert experts.shape == (len(sample["tokens"]) - 1, SHAPE.layers, SHAPE.top_k)
        assert experts.dtype == np.int32
        assert (experts[..., 0] != experts[..., 1]).all(), "a dispatcher wants distinct experts"
        assert (experts.max(axis=(0, 2)) > 0).all(), "slime refuses a layer of zeros"
    subagent = found[2]["rollout_routed_experts"]
    kept = found[2]["metadata"]["kind"], subagent[0, 0, 0], subagent[-1, 0, 0]
    assert kept == ("subagent", 4, 6), "the rows of turn 2, then those of turn 3"
    [record, _] = [json.loads(line) for line in (tmp_path / "trajectories.jsonl").open()]
    values = [turn["routed"] for turn in record["turns"]]
    assert values == [True, False, *[True] * 6]
    assert "experts" not in (tmp_path / "trajectories.jsonl").read_text()


def test_a_run_without_routing_has_samples_without_it(tmp_path: Path) -> None:
    with branched_run(tmp_path / "run") as store:
        found = samples(store, tmp_path)
    assert all("rollout_routed_experts" not in sample for sample in found)
