"""A step's samples: the group decides a rollout's advantage, the fan-out which tokens get it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.campaigns.step_metrics import step_metrics
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import TASK_SET, Turn
from runners.records.session_summary import SUMMED_COUNTERS
from runners.training.advantages import StepGroups
from tests.fakes.records import a_turn
from tests.fakes.step_samples import (
    BRANCHED,
    LINEAR,
    build,
    chain,
    read_config,
    rollouts,
    samples_of,
)

CONFIGS = {
    line: read_config(line)
    for line in (
        "fanout=segments",
        *(
            f"fanout.reward={reward}"
            for reward in ("copy", "uniform", "token_share", "final_only", "root_only")
        ),
        "fanout=collapse",
        "fanout.max_segment_tokens=1000 fanout.long_final=drop",
        "fanout.max_segments=2",
        "rollout.replace_flat=true",
        "trainer.kl.weight=0.1",
        "trainer.entropy_bonus=0.1",
        "trainer.train_unfinished=false",
    )
}
DEFAULT = CONFIGS["fanout=segments"]


def test_every_sampled_token_of_a_linear_rollout_is_trained_with_its_rollout_s_advantage() -> None:
    batch = samples_of(rollouts(1.0, 0.0), LINEAR)
    assert [record.advantage for record in batch.records] == [1.0, -1.0]
    assert [record.trained_tokens for record in batch.records] == [6, 6]
    assert [[s.advantage for s in samples] for samples in batch.rollouts] == [[1.0], [-1.0]]
    metrics = step_metrics(batch, 2.0)
    assert metrics["tokens/trained"] == metrics["tokens/sampled"] == 12
    assert metrics["tokens/trained_share"] == 1.0
    assert metrics["fanout/segments_mean"] == 1.0


def test_trained_tokens_of_a_branched_step_are_counted_by_kind() -> None:
    metrics = step_metrics(samples_of(rollouts(1.0, 0.0, sampled=10), BRANCHED), 1.0)
    wanted = {
        "fanout/segments_mean": 4.0,
        "fanout/dropped_long": 0,
        "fanout/dropped_many": 0,
        "fanout/cut_tokens": 0,
        "fanout/untrained_side": 2,
        "tokens/sampled": 20,
        "tokens/in_loss": 16,
        "tokens/in_loss_share": 0.8,
        "tokens/trained": 16,
        "tokens/trained_share": 0.8,
        "tokens/trained_final": 4,
        "tokens/trained_wipe": 4,
        "tokens/trained_subagent": 4,
        "tokens/trained_compaction": 4,
        "tokens/trained_side": 0,
    }
    assert {key: metrics[key] for key in wanted} == wanted


def test_a_segment_without_a_share_is_not_counted_as_trained() -> None:
    batch = samples_of(rollouts(1.0, 0.0, sampled=10), BRANCHED, "fanout.reward=final_only")
    assert [record.trained_tokens for record in batch.records] == [2, 2]
    assert [len(samples) for samples in batch.rollouts] == [4, 4]
    assert (batch.in_loss, batch.trained.total()) == (16, 4)


@pytest.mark.parametrize("line", [line for line in CONFIGS if line != "rollout.replace_flat=true"])
@pytest.mark.parametrize("reward", [0.0, 0.94, 1.0])
def test_a_group_of_equal_rewards_has_advantage_exactly_zero(line: str, reward: float) -> None:
    batch = samples_of(rollouts(reward, None, reward, reward), BRANCHED, line)
    samples = [sample for samples in batch.rollouts for sample in samples]
    assert samples
    assert {sample.advantage for sample in samples} == {0.0}
    assert batch.groups.flat == [0]


def test_tokens_of_a_flat_group_are_in_the_loss_and_have_no_gradient() -> None:
    batch = samples_of(rollouts(1.0, 1.0) + rollouts(1.0, 0.0, group=1), LINEAR)
    assert [record.trained_tokens for record in batch.records] == [0, 0, 6, 6]
    metrics = step_metrics(batch, 1.0)
    assert (metrics["tokens/in_loss"], metrics["tokens/in_loss_share"]) == (24, 1.0)
    assert (metrics["tokens/trained"], metrics["tokens/trained_share"]) == (12, 0.5)
    assert metrics["tokens/trained_final"] == 12
    assert (metrics["rollout/groups"], metrics["rollout/groups_flat"]) == (2, 1)


def test_groups_of_the_same_number_from_different_deals_are_counted_apart() -> None:
    later = [replace(record, step=2, extra={TASK_SET: "bugfix"}) for record in rollouts(1.0, 0.0)]
    batch = samples_of(rollouts(1.0, 1.0) + later, LINEAR)
    metrics = step_metrics(batch, 1.0, ["bugfix"])
    assert (metrics["rollout/groups"], metrics["rollout/groups_flat"]) == (2, 1)
    earlier = [replace(record, step=1) for record in later]
    metrics = step_metrics(samples_of(earlier + later, LINEAR), 1.0, ["bugfix"])
    assert metrics["rollout/groups/bugfix"] == metrics["rollout/groups"] == 2


@pytest.mark.parametrize("line", ["trainer.kl.weight=0.1", "trainer.entropy_bonus=0.1"])
def test_a_flat_group_s_tokens_are_trained_where_more_than_the_advantage_has_a_gradient(
    line: str,
) -> None:
    batch = samples_of(rollouts(1.0, 1.0), LINEAR, line)
    assert step_metrics(batch, 1.0)["tokens/trained"] == 12


def test_a_rollout_of_which_nothing_is_left_stays_in_its_baseline_and_in_the_average() -> None:
    def turns(session_id: str) -> list[Turn]:
        long = "-02-" in session_id  # the third member
        return [chain(0, 1001 if long else 1000, session_id=session_id)]

    capped = "fanout.max_segment_tokens=1000 fanout.long_final=drop"
    batch = build(rollouts(1.0, 1.0, 0.0), turns, capped)
    advantages = [record.advantage for record in batch.records]
    assert advantages == pytest.approx([2**-0.5, 2**-0.5, -(2**0.5)])
    assert [record.trained_tokens for record in batch.records] == [2, 2, 0]
    assert [len(samples) for samples in batch.rollouts] == [1, 1, 0]
    metrics = step_metrics(batch, 1.0)
    assert metrics["fanout/dropped_long"] == 1
    assert metrics["fanout/segments_mean"] == pytest.approx(2 / 3)
    assert metrics["tokens/in_loss_share"] == pytest.approx(4 / 18)
    spread = [metrics[f"fanout/segments_{name}"] for name in ("min", "mean", "max")]
    assert spread == [0, pytest.approx(2 / 3), 1]


def test_an_ungraded_rollout_is_neither_in_the_baseline_nor_fanned_out() -> None:
    records = rollouts(1.0, None, 0.0) + rollouts(1.0, None, group=1)
    batch = samples_of(records, LINEAR)
    assert [record.advantage for record in batch.records] == [1.0, None, -1.0, None, None]
    assert len(batch.rollouts) == 2
    assert batch.groups.without_baseline == [1]
    metrics = step_metrics(batch, 1.0)
    assert metrics["rollout/ungraded"] == 2
    assert metrics["tokens/in_loss_share"] == pytest.approx(12 / 18)  # one graded in vain


def test_session_counters_are_summed_over_graded_rollouts_only() -> None:
    told = [
        {"parser_fallbacks": 2, "routing_missing": 1},
        {"parser_fallbacks": 3},
        {"parser_fallbacks": 4},
    ]
    records = [
        replace(record, extra={"session": figures})
        for record, figures in zip(rollouts(1.0, 0.0, None), told, strict=True)
    ]
    metrics = step_metrics(samples_of(records, LINEAR), 1.0)
    summed = {name: metrics[f"rollout/{name}"] for name in SUMMED_COUNTERS}
    told_of = {"parser_fallbacks": 5, "routing_missing": 1}
    assert summed == dict.fromkeys(SUMMED_COUNTERS, 0) | told_of


def test_cheating_is_counted_per_step() -> None:
    accused = Outcome(OutcomeCode.POLICY_TAMPERED, Stage.GRADE, "canary: 1 of 1")
    honest, cheat, unclear = rollouts(1.0, 0.0, 1.0)
    records = [
        replace(honest, verdict={"signs": ["frames"], "unverified": ""}),
        replace(cheat, outcome=accused, verdict={"signs": ["frames", "exits"]}),
        replace(unclear, verdict={"unverified": "no assertion"}),
    ]
    metrics = step_metrics(samples_of(records, LINEAR), 1.0)
    counts = [metrics[f"cheating/{name}"] for name in ("tampered", "signs", "unverified")]
    assert counts == [1, 2, 1]


@given(
    st.lists(st.sampled_from([None, 0.0, 0.5, 1.0]), min_size=1, max_size=6),
    st.sampled_from([line for line in CONFIGS if line != "rollout.replace_flat=true"]),
)
def test_the_advantage_does_not_depend_on_the_fan_out(
    rewards: list[float | None], line: str
) -> None:
    records = rollouts(*rewards)
    wanted = [record.advantage for record in samples_of(records, LINEAR).records]
    batch = samples_of(records, BRANCHED, line)
    assert [record.advantage for record in batch.records] == wanted
    assert batch.trained.total() == sum(record.trained_tokens for record in batch.records)


def test_turns_and_tool_calls_have_least_mean_and_greatest_of_the_graded_rollouts() -> None:
    first, second, third, lost = rollouts(1.0, 0.0, 0.0, None)
    records = [
        replace(first, turns=2, tool_turns=1, tool_calls=1),
        replace(second, turns=7, tool_turns=6, tool_calls=9),
        replace(third, turns=3, tool_turns=2, tool_calls=2),
        replace(lost, turns=90, tool_turns=90, tool_calls=90),
    ]
    metrics = step_metrics(samples_of(records, LINEAR), 1.0)
    found = {
        name: [metrics[f"rollout/{name}_{end}"] for end in ("min", "mean", "max")]
        for name in ("turns", "tool_turns", "tool_calls")
    }
    assert found == {"turns": [2, 4, 7], "tool_turns": [1, 3, 6], "tool_calls": [1, 4, 9]}


def test_staleness_is_the_age_of_the_weights_that_sampled_the_tokens_of_the_loss() -> None:
    turns = [a_turn(index=index, weight_version=version) for index, version in enumerate((5, 5, 7))]
    batch = samples_of(rollouts(1.0, 0.0), turns)
    ends = ("policy/staleness_mean", "policy/staleness_max")
    for version, ages in ((9, [4, 4, 2]), (None, [2, 2, 0])):
        metrics = step_metrics(batch, 1.0, version=version)
        assert [metrics[end] for end in ends] == [pytest.approx(sum(ages) / 3), max(ages)]
    (last,) = [len(turn.output_ids) for turn in turns[2:]]
    turns[2] = a_turn(index=2, weight_version=8, weight_spans=[[7, 1], [8, last - 1]])
    metrics = step_metrics(samples_of(rollouts(1.0, 0.0), turns), 1.0, version=9)
    tokens = [4] * 2 * last + [2] + [1] * (last - 1)
    assert metrics["policy/staleness_mean"] == pytest.approx(sum(tokens) / len(tokens))
    unknown = [a_turn(index=index, weight_version=-1) for index in range(3)]
    metrics = step_metrics(samples_of(rollouts(1.0, 0.0), unknown), 1.0, version=9)
    assert [metrics[end] for end in ends] == [None, None]


def test_every_step_has_the_same_metrics() -> None:
    full = step_metrics(samples_of(rollouts(1.0, 0.0), BRANCHED), 1.0)
    for records in ([], rollouts(None, None), rollouts(1.0)):
        assert step_metrics(samples_of(records, LINEAR), 0.0).keys() == full.keys()
    assert step_metrics(samples_of([], LINEAR), 0.0)["tokens/trained_share"] is None


def test_a_failed_rollout_stays_among_the_records_and_weighs_nothing() -> None:
    records = rollouts(1.0, None, None, 0.0)
    batch = samples_of(records, LINEAR)
    assert [record.rollout_id for record in batch.records] == [one.rollout_id for one in records]
    assert [record.advantage for record in batch.records] == [1.0, None, None, -1.0]
    assert len(batch.rollouts) == 2, "a failed rollout counts in no average"


def test_a_rollout_is_read_once_and_one_without_an_advantage_never() -> None:
    read: list[str] = []

    def turns(session_id: str) -> list[Turn]:
        read.append(session_id)
        return [replace(turn, session_id=session_id) for turn in LINEAR]

    records = rollouts(1.0, None, 0.0)
    build(records, turns)
    assert read == [record.session_id for record in records if record.reward is not None]


def test_a_rollout_whose_turns_cannot_be_read_is_masked_and_its_siblings_are_untouched() -> None:
    def turns(session_id: str) -> list[Turn]:
        if "-00-00-" in session_id:
            raise ValueError("torn {} %s \udcff")
        return [replace(turn, session_id=session_id) for turn in LINEAR]

    batch = build(rollouts(1.0, 0.0), turns)
    assert [record.advantage for record in batch.records] == [1.0, -1.0], "its reward was real"
    assert [record.trained_tokens for record in batch.records] == [0, 6]
    assert [len(samples) for samples in batch.rollouts] == [0, 1]
    [reason] = batch.unbuilt.values()
    assert reason == "ValueError: torn {} %s ?"
    assert step_metrics(batch, 1.0)["rollout/unbuilt"] == 1


def test_an_unfinished_rollout_can_be_left_out_of_the_loss_but_not_of_the_baseline() -> None:
    late = Outcome(OutcomeCode.BUDGET_TURNS, Stage.HARNESS)
    first, *others = rollouts(0.0, 1.0)
    records = [replace(first, outcome=late), *others]
    trained = samples_of(records, LINEAR)
    masked = samples_of(records, LINEAR, "trainer.train_unfinished=false")
    assert [r.advantage for r in trained.records] == [r.advantage for r in masked.records]
    assert [record.trained_tokens for record in trained.records] == [6, 6]
    assert [record.trained_tokens for record in masked.records] == [0, 6]
    assert step_metrics(masked, 1.0)["fanout/untrained_unfinished"] == 1


def test_flat_groups_are_left_out_of_the_average_where_they_are_replaced() -> None:
    records = rollouts(1.0, 1.0) + rollouts(1.0, 0.0, group=1) + rollouts(1.0, None, group=2)
    groups = samples_of(records, LINEAR).groups
    assert (groups.without_baseline, groups.flat, groups.untrainable) == ([2], [0], 1)
    assert len(samples_of(records, LINEAR).rollouts) == 4
    batch = samples_of(records, LINEAR, "rollout.replace_flat=true")
    assert batch.groups.untrainable == 2
    assert len(batch.rollouts) == 2
    assert len(batch.records) == 6
    metrics = step_metrics(batch, 1.0)
    assert (metrics["rollout/groups_flat"], metrics["rollout/groups_dropped"]) == (1, 1)
    assert (metrics["rollout/without_signal"], metrics["tokens/without_signal"]) == (3, 18)
    assert metrics["tokens/sampled"] == 30


def test_groups_that_come_later_leave_the_advantages_of_earlier_ones_as_they_are() -> None:
    first, second = rollouts(1.0, 0.0), rollouts(0.0, 0.0, 1.0, group=1)
    groups = StepGroups(DEFAULT, first)
    earlier = list(groups.advantages)
    groups.add(second)
    assert groups.advantages[: len(first)] == earlier
    assert groups.advantages == StepGroups(DEFAULT, [*first, *second]).advantages
    assert groups.advantages == StepGroups(DEFAULT, [*second, *first]).advantages
