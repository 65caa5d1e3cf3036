"""Fan-out into slime's samples, and rewards by prompt group, without a running job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from runners.campaigns.slime.rewards import compute_rewards
from runners.campaigns.slime.routing_check import RoutingCheck
from runners.campaigns.slime.samples import SampleConfig, to_slime_samples
from runners.records.graph import build_segments
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import RolloutRecord, Segment
from runners.records.routing import Routing, RoutingError, RoutingShape, make_unrouted
from runners.training.advantages import Gdpo, GrpoEstimator, ReinforcePlusPlus
from runners.training.step_samples import StoredRollout
from tests.fakes.records import branched_run
from tests.fakes.slime_rollout import Sample

SHAPE = RoutingShape(layers=2, top_k=2, experts=4, routed=(0, 1))
BASE = Sample(group_index=5, index=41, prompt="Fix it.", label="x", metadata={"a": 1})


def sample_config(*overrides: str, shape: RoutingShape | None = None) -> SampleConfig:
    fanout = compose(list(overrides)).fanout
    return SampleConfig(fanout, True, lambda ids: " ".join(map(str, ids)), pad=0, shape=shape)


def branched_rollout(tmp_path: Path, **changes: Any) -> StoredRollout:
    """Return a rollout with a side query, a sub-agent, a compaction and two wipes."""
    with branched_run(tmp_path / "run") as store:
        record: RolloutRecord = store.rollouts(counts=True)[0]
        turns = store.turns(record.session_id)
    return StoredRollout(
        replace(record, **changes), turns, build_segments(turns), lambda segment: None
    )


def test_siblings_share_the_rollout_and_train_each_token_once(tmp_path: Path) -> None:
    rollout = branched_rollout(tmp_path)
    siblings = to_slime_samples(
        BASE, rollout, sample_config("fanout.train_compaction=true"), evaluation=False
    )
    kinds = [sibling.metadata["agentrl"]["kind"] for sibling in siblings]
    assert kinds == ["edit", "subagent", "wipe", "compaction", "final"]
    assert {(sibling.rollout_id, sibling.index) for sibling in siblings} == {(41, 41)}
    side = sum(int(c.loss_mask.sum()) for c in rollout.segments if c.kind == "side")
    sampled = sum(len(turn.output_ids) for turn in rollout.turns)
    assert sum(sum(sibling.loss_mask) for sibling in siblings) == sampled - side
    for sibling in siblings:
        assert len(sibling.loss_mask) == len(sibling.rollout_log_probs) == sibling.response_length
        assert sibling.loss_mask[0] == 1, "the region begins at the first token sampled here"
        assert sibling.metadata["a"] == 1
    assert BASE.tokens == []
    assert BASE.metadata == {"a": 1}


def test_an_evaluation_has_the_final_segment_only(tmp_path: Path) -> None:
    (only,) = to_slime_samples(BASE, branched_rollout(tmp_path), sample_config(), evaluation=True)
    assert only.metadata["agentrl"]["kind"] == "final"


def test_a_lost_rollout_is_one_masked_sample_with_routing_of_its_length(tmp_path: Path) -> None:
    lost = branched_rollout(
        tmp_path, reward=None, outcome=Outcome(OutcomeCode.GRADER_ERROR, Stage.GRADE)
    )
    (row,) = to_slime_samples(BASE, lost, sample_config(shape=SHAPE), evaluation=False)
    assert row.status is Sample.Status.FAILED
    assert row.tokens[:-1] == lost.turns[0].prompt_new.tolist()
    assert (row.response_length, row.loss_mask, row.rollout_log_probs) == (1, [0], [0.0])
    assert row.rollout_routed_experts.shape == (len(row.tokens) - 1, 2, 2)
    assert (row.rollout_routed_experts[..., 0] != row.rollout_routed_experts[..., 1]).all()
    assert (row.reward, row.metadata["agentrl"]["graded"]) == (0.0, False)


def test_a_segment_with_a_gap_in_its_routing_is_not_trained(tmp_path: Path) -> None:
    def routing(segment: Segment) -> Routing:
        found = make_unrouted(SHAPE, len(segment.tokens))
        found.valid[:-1] = True
        found.valid[3] = segment.kind != "wipe"
        return found

    rollout = replace(branched_rollout(tmp_path), routing=routing)
    siblings = to_slime_samples(BASE, rollout, sample_config(shape=SHAPE), evaluation=False)
    removed = {s.metadata["agentrl"]["kind"] for s in siblings if s.remove_sample}
    assert removed == {"wipe"}


@pytest.mark.parametrize(("layer", "experts"), [(0, (1, 1)), (1, (3, 3))])
def test_impossible_routing_ends_the_job_or_takes_its_sample_out_and_is_counted(
    tmp_path: Path, layer: int, experts: tuple[int, int]
) -> None:
    def routing(segment: Segment) -> Routing:
        found = make_unrouted(SHAPE, len(segment.tokens))
        found.valid[:-1] = True
        if segment.kind == "final":
            found.experts[2, layer] = experts
        return found

    rollout = replace(branched_rollout(tmp_path), routing=routing)
    config = sample_config(shape=SHAPE)
    samples = to_slime_samples(BASE, rollout, config, evaluation=False)
    removed = {s.metadata["agentrl"]["kind"] for s in samples if s.remove_sample}
    assert removed == {"final"}
    check = RoutingCheck()
    check.add(samples)
    rows = sum(len(sample.tokens) - 1 for sample in samples)
    assert (check.rows, check.missing) == (rows, 0)
    assert check.metrics() == {
        "r3/captured": 1.0, "r3/invalid_rows": 0, "r3/refused_samples": 1,
    }  # fmt: skip
    with pytest.raises(RoutingError, match=f"routes token 2 in layer {layer} twice"):
        to_slime_samples(
            BASE, rollout, replace(config, stops_at_bad_routing=True), evaluation=False
        )


def test_rows_that_are_missing_are_counted_and_without_routing_there_is_no_figure(
    tmp_path: Path,
) -> None:
    def routing(segment: Segment) -> Routing:
        found = make_unrouted(SHAPE, len(segment.tokens))
        found.valid[1:-1] = True
        return found

    rollout = branched_rollout(tmp_path)
    check = RoutingCheck()
    check.add(to_slime_samples(BASE, rollout, sample_config(), evaluation=False))
    assert check.metrics() == {}
    rollout = replace(rollout, routing=routing)
    samples = to_slime_samples(BASE, rollout, sample_config(shape=SHAPE), evaluation=False)
    check.add(samples)
    assert check.metrics()["r3/invalid_rows"] == len(samples)
    assert all(sample.remove_sample for sample in samples)


def test_what_ran_out_of_its_budget_is_truncated_and_trained_only_if_asked_for(
    tmp_path: Path,
) -> None:
    cut = branched_rollout(tmp_path, outcome=Outcome(OutcomeCode.BUDGET_TURNS, Stage.HARNESS))
    for train in (True, False):
        how = replace(sample_config(), train_unfinished=train)
        (only,) = to_slime_samples(BASE, cut, how, evaluation=True)
        assert only.status is Sample.Status.TRUNCATED
        assert only.remove_sample is not train


def sample(
    group: int, rollout: int, reward: float | None, share: float = 1.0, **parts: float
) -> Sample:
    about = {"graded": reward is not None, "share": share, "parts": parts}
    return Sample(
        group_index=group, index=rollout, rollout_id=rollout, reward=reward or 0.0,
        metadata={"agentrl": about},
    )  # fmt: skip


def test_rewards_are_compared_within_their_group_however_many_segments_there_are() -> None:
    samples = [
        *(sample(0, 0, 1.0, 0.5), sample(0, 0, 1.0, 0.5), sample(0, 1, 0.0)),
        *(sample(1, 2, 1.0), sample(1, 3, 1.0), sample(1, 3, 1.0)),
    ]
    raw, trained = compute_rewards(samples, GrpoEstimator(normalize_std=False), min_group=2)
    assert raw == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert trained == [0.25, 0.25, -0.5, 0.0, 0.0, 0.0]


def test_a_rollout_without_a_grade_is_in_no_baseline() -> None:
    samples = [sample(0, 0, 1.0), sample(0, 1, 0.0), sample(0, 2, None), sample(1, 3, None)]
    raw, trained = compute_rewards(samples, GrpoEstimator(), min_group=2)
    assert trained == pytest.approx([1.0, -1.0, 0.0, 0.0])
    assert raw == [1.0, 0.0, 0.5, 0.5], "slime reports it: it moves no average"


def test_a_group_with_too_few_grades_has_no_advantages() -> None:
    samples = [sample(0, 0, 1.0), sample(0, 1, 0.0), sample(0, 2, None)]
    _, trained = compute_rewards(samples, GrpoEstimator(normalize_std=False), min_group=3)
    assert trained == [0.0, 0.0, 0.0]


def test_samples_of_another_generate_function_are_refused() -> None:
    with pytest.raises(ValueError, match="--rollout-function-path"):
        compute_rewards([Sample(group_index=0, index=7)], GrpoEstimator(), min_group=2)


def test_reinforce_pp_is_normalised_over_the_rollouts_of_all_groups() -> None:
    graded = [(0, 1.0), (0, 1.0), (1, 1.0), (1, 0.0)]
    samples = [sample(group, number, reward) for number, (group, reward) in enumerate(graded)]
    _, trained = compute_rewards(samples, ReinforcePlusPlus(), min_group=2)
    assert trained == pytest.approx([3**-0.5, 3**-0.5, 3**-0.5, -(3**0.5)])


def test_gdpo_compares_the_parts_of_rewards_and_normalises_over_all_groups() -> None:
    samples = [
        *(sample(0, 0, 0.9, tests=1.0, cost=-0.1), sample(0, 1, 0.0, tests=0.0, cost=0.0)),
        *(sample(0, 2, None), sample(1, 3, -0.3, cost=-0.3), sample(1, 4, -0.2, cost=-0.2)),
    ]
    _, trained = compute_rewards(samples, Gdpo({}), min_group=2)
    assert trained == pytest.approx([0.0, 0.0, 0.0, -(2**0.5), 2**0.5])
