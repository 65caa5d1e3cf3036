"""Which chains are not in the loss, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from runners.observe.export.masked import find_masked
from runners.observe.export.run_dump import dump
from runners.observe.export.trajectory import Trajectory
from runners.records.graph import build_segments
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from tests.fakes.records import LOST, a_rollout, branched_turns
from tests.fakes.step_samples import read_config
from tests.fakes.trained_run import train_run

CHAINS = build_segments(branched_turns())
SIDE = {0: "side"}
COLLAPSED = {0: "side", 1: "collapsed", 2: "collapsed", 3: "collapsed", 4: "collapsed"}
LATE = Outcome(OutcomeCode.BUDGET_TURNS, Stage.HARNESS, "too many turns", None)


def read(folder: Path) -> list[Trajectory]:
    lines = (folder / "trajectories.jsonl").read_text("utf-8").splitlines()
    return [Trajectory.model_validate_json(line) for line in lines]


def masked(record: RolloutRecord, line: str = "") -> dict[int, Any]:
    return dict(find_masked(record, CHAINS, read_config(line).model_dump(mode="json")))


def test_a_trained_rollout_has_masked_what_its_fan_out_leaves_out() -> None:
    assert masked(a_rollout()) == SIDE
    assert masked(a_rollout(), "fanout=collapse") == COLLAPSED
    # Kept are the final chain and, of those with the most sampled tokens, the first.
    assert masked(a_rollout(), "fanout.max_segments=2 fanout.train_side=true") == {
        0: "many", 2: "many", 3: "many", 4: "many",
    }  # fmt: skip


def test_a_chain_that_the_rule_of_shares_does_not_pay_says_so() -> None:
    unpaid = {0: "side", **dict.fromkeys((1, 2, 3, 4), "no_share")}
    assert masked(a_rollout(), "fanout.reward=final_only") == unpaid
    assert set(masked(a_rollout(), "fanout.reward=root_only").values()) == {"side", "no_share"}
    assert masked(a_rollout(), "fanout.reward=token_share") == SIDE
    # a KL penalty trains them all the same
    assert masked(a_rollout(), "fanout.reward=final_only trainer.kl.weight=0.1") == SIDE
    alone = [chain for chain in CHAINS if chain.kind != "final"]
    config = read_config("fanout.reward=final_only fanout.train_side=true").model_dump(mode="json")
    found = find_masked(replace(a_rollout(), trained_tokens=0), alone, config)
    assert set(found.values()) == {"no_share"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"outcome": LOST, "reward": None}, "ungraded"),
        ({"advantage": None}, "no_advantage"),
        ({"outcome": LATE}, "unfinished"),
        ({"trained_tokens": 0}, "unbuilt"),
    ],
)
def test_a_rollout_that_is_not_trained_is_masked_whole(
    changes: dict[str, Any], reason: str
) -> None:
    found = masked(replace(a_rollout(), **changes), "trainer.train_unfinished=false")
    assert found == dict.fromkeys(range(6), reason)


def test_an_advantage_of_0_and_an_evaluation_mask_nothing() -> None:
    assert masked(a_rollout(advantage=0.0, trained_tokens=0)) == SIDE
    assert masked(a_rollout("eval-000001-00-00", advantage=None)) == {}


def test_a_configuration_of_another_version_masks_no_chain() -> None:
    assert find_masked(a_rollout(), CHAINS, {"fanout": {"kind": "of-old"}}) == {}


def test_what_is_not_masked_is_what_was_trained(tmp_path: Path) -> None:
    """Over a whole run: the masks of the chains that are not masked add up to the tokens in the
    loss.
    """
    with train_run(tmp_path / "run", ["trainer.train_unfinished=false"], members=8) as store:
        dump(store, tmp_path, formats=("jsonl",))
        records = {record.rollout_id: record for record in store.rollouts()}
    seen: set[str | None] = set()
    for trajectory in read(tmp_path):
        record = records[trajectory.rollout_id]
        left = [part for part in trajectory.segments if part.masked is None]
        seen.update(part.masked for part in trajectory.segments)
        if record.advantage != 0.0:
            assert sum(sum(part.loss_mask) for part in left) == record.trained_tokens
    assert seen == {None, "side", "ungraded", "unfinished"}


def branched(run_dir: Path, finish: str) -> RunStore:
    """Make a run with one rollout whose second turn ended so."""
    store = RunStore.create(run_dir, compose(["scenario=mixed"]).model_dump(mode="json"))
    record = a_rollout(turns=8, sampled_tokens=24, trained_tokens=21)
    store.add_session(record.session_id, {})
    for turn in branched_turns(record.session_id):
        store.add_turn(replace(turn, finish_reason=finish) if turn.index == 1 else turn)
    store.put_rollout(record)
    return store


def test_a_chain_has_the_finish_reason_of_its_last_turn(tmp_path: Path) -> None:
    with branched(tmp_path / "run", "length") as store:
        dump(store, tmp_path, formats=("jsonl",))
    (trajectory,) = read(tmp_path)
    assert [part.finish_reason for part in trajectory.segments] == ["stop"] * 6
    with branched(tmp_path / "cut", "abort") as store:
        turns = store.turns("train-000001-00-00-a0")
    assert [turn.finish_reason for turn in turns][:3] == ["stop", "abort", "stop"]
