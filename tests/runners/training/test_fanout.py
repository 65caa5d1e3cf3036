"""Fan-out: over any turn graph, every sampled token at most once, every rollout equal."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.sections.training import (
    CollapseFanoutConfig,
    FanoutConfig,
    LongFinal,
    RewardShare,
    SegmentsFanoutConfig,
)
from runners.records.graph import build_segments
from runners.records.record import BranchKind, Segment, SegmentKind, Turn
from runners.records.routing import RoutingShape, make_unrouted
from runners.training.sample import compute_token_weights
from runners.training.step_samples import FanOut, compute_shares, fan_out
from tests.fakes.records import a_turn

REWARDS: list[RewardShare] = ["copy", "uniform", "token_share", "final_only", "root_only"]
THREADS: list[tuple[str, BranchKind]] = [
    ("main", "main"),
    ("main", "compaction"),
    ("main", "side"),
    ("a1", "subagent"),
    ("a1", "compaction"),
    ("a2", "subagent"),
]


def config(reward: RewardShare = "copy", **changes: object) -> SegmentsFanoutConfig:
    """Return the default of ``fanout=segments`` with changes."""
    defaults = {
        "kind": "segments", "reward": reward, "max_segment_tokens": None, "max_segments": None,
        "train_compaction": True, "train_subagents": True, "train_side": False,
        "long_final": "drop",
    }  # fmt: skip
    return SegmentsFanoutConfig.model_validate(defaults | changes)


def collapse(longest: int | None, long_final: LongFinal = "drop") -> CollapseFanoutConfig:
    """Return the default of ``fanout=collapse`` with such a cap."""
    return CollapseFanoutConfig(kind="collapse", max_segment_tokens=longest, long_final=long_final)


LONG_FINALS: st.SearchStrategy[LongFinal] = st.sampled_from(["cut", "drop"])
CONFIGS: st.SearchStrategy[FanoutConfig] = st.builds(
    SegmentsFanoutConfig,
    kind=st.just("segments"),
    reward=st.sampled_from(REWARDS),
    max_segment_tokens=st.none() | st.integers(1, 40),
    max_segments=st.none() | st.integers(1, 4),
    train_compaction=st.booleans(),
    train_subagents=st.booleans(),
    train_side=st.booleans(),
    long_final=LONG_FINALS,
) | st.builds(collapse, st.none() | st.integers(1, 40), LONG_FINALS)


@st.composite
def graphs(draw: st.DrawFn) -> list[Turn]:
    """Draw a session: turns of several threads that continue, fork off or start anew.

    A token is the number of its place in the session, so that each is there once.
    """
    turns: list[Turn] = []
    lengths: list[int] = []
    ends: dict[int, int] = {}
    number = itertools.count()
    for index in range(draw(st.integers(0, 10))):
        thread, branch = draw(st.sampled_from(THREADS))
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        kept = 0 if parent is None else lengths[parent]
        speaker = None if parent is None else (turns[parent].thread, turns[parent].branch)
        chains = [chain for chain, end in ends.items() if end == parent]
        grows = bool(chains) and speaker == (thread, branch) and draw(st.booleans())
        segment = chains[0] if grows else len(ends)
        new, output = draw(st.integers(1, 5)), draw(st.integers(0, 5))
        prompt_new, output_ids = (
            np.array([next(number) for _ in range(count)], np.int32) for count in (new, output)
        )
        turns.append(
            a_turn(
                index=index,
                thread=thread,
                branch=branch,
                segment=segment,
                parent=parent,
                prompt_kept=kept,
                prompt_new=prompt_new,
                output_ids=output_ids,
                output_logprobs=np.full(output, -0.5, np.float32),
            )
        )
        lengths.append(kept + new + output)
        ends[segment] = index
    return turns


def trained_tokens(fan: FanOut) -> list[int]:
    return [int(token) for sample in fan.samples for token in sample.tokens[sample.loss_mask]]


def weight_of(rollouts: Sequence[FanOut]) -> list[float]:
    """Return the weight of each rollout: of its trained tokens together."""
    weights = iter(compute_token_weights([fan.samples for fan in rollouts]))
    return [sum(next(weights) * int(s.loss_mask.sum()) for s in fan.samples) for fan in rollouts]


@given(graphs(), CONFIGS)
def test_a_sampled_token_is_trained_at_most_once(turns: list[Turn], fanout: FanoutConfig) -> None:
    tokens = trained_tokens(fan_out("r", build_segments(turns), 1.0, fanout))
    assert len(tokens) == len(set(tokens))
    assert set(tokens) <= {int(token) for turn in turns for token in turn.output_ids}


@given(graphs(), st.sampled_from(REWARDS), st.booleans())
def test_without_caps_a_sampled_token_is_trained_exactly_once_aside_from_side_requests(
    turns: list[Turn], reward: RewardShare, train_side: bool
) -> None:
    only_aside = all(turn.branch == "side" for turn in turns)  # it is taken for the work
    fan = fan_out("r", build_segments(turns), 1.0, config(reward, train_side=train_side))
    wanted = [
        int(token)
        for turn in turns
        if train_side or only_aside or turn.branch != "side"
        for token in turn.output_ids
    ]
    assert sorted(trained_tokens(fan)) == sorted(wanted)


@given(graphs(), CONFIGS, st.floats(-3, 3))
def test_every_segment_is_a_whole_sample_or_counted_as_dropped(
    turns: list[Turn], fanout: FanoutConfig, advantage: float
) -> None:
    chains = build_segments(turns)
    fan = fan_out("r", chains, advantage, fanout)
    assert len(fan.samples) + fan.dropped.total() == len(chains)
    places = [
        next(
            place
            for place, chain in enumerate(chains)
            # the same arrays, of which a final one may have lost its tail
            if np.shares_memory(sample.tokens, chain.tokens)
            and np.shares_memory(sample.loss_mask, chain.loss_mask)
            and np.shares_memory(sample.logprobs, chain.logprobs)
        )
        for sample in fan.samples
    ]
    assert places == sorted(set(places))
    assert {sample.rollout_id for sample in fan.samples} <= {"r"}


@given(st.lists(st.tuples(graphs(), CONFIGS), min_size=1, max_size=4))
def test_a_rollout_weighs_one_nth_whatever_its_fan_out(
    rollouts: list[tuple[list[Turn], FanoutConfig]],
) -> None:
    fans = [
        fan_out(f"r{i}", build_segments(turns), 1.0, c) for i, (turns, c) in enumerate(rollouts)
    ]
    wanted = [1 / len(fans) if fan.samples else 0.0 for fan in fans]
    assert weight_of(fans) == pytest.approx(wanted)


@given(graphs(), CONFIGS)
def test_an_advantage_of_zero_stays_exactly_zero(turns: list[Turn], fanout: FanoutConfig) -> None:
    fan = fan_out("r", build_segments(turns), 0.0, fanout)
    assert all(sample.advantage == 0.0 for sample in fan.samples)


@given(graphs(), st.sampled_from(REWARDS), st.integers(1, 4), st.integers(1, 40))
def test_caps_keep_the_final_the_most_sampled_and_the_head(
    turns: list[Turn], reward: RewardShare, most: int, longest: int
) -> None:
    chains = build_segments(turns)
    capped = config(reward, max_segments=most, max_segment_tokens=longest, train_side=True)
    fan = fan_out("r", chains, 1.0, capped)
    fitting = [c for c in chains if c.loss_mask.any() and len(c.tokens) <= longest]
    finals = [c.index for c in fitting if c.kind == "final"]
    sampled = {c.index: int(c.loss_mask.sum()) for c in fitting}
    first = [max(sampled, key=lambda index: sampled[index])] if sampled else []
    others = dict.fromkeys([*finals, *first, *sampled])
    head = [index for index in others if index not in finals][: most - len(finals)]
    kept = [c.index for c in chains for s in fan.samples if s.tokens is c.tokens]
    assert kept == sorted(finals + head)
    assert len(kept) == min(most, len(fitting))
    assert fan.dropped["many"] == len(fitting) - len(kept)
    assert fan.dropped["long"] == sum(
        len(c.tokens) > longest and bool(c.loss_mask.any()) for c in chains
    )


def chain(index: int, kind: SegmentKind, thread: str, sampled: int, prompt: int = 2) -> Segment:
    """Return a segment of ``prompt`` tokens and then ``sampled`` ones."""
    mask = np.array([False] * prompt + [True] * sampled)
    return Segment(
        session_id="s", index=index, kind=kind, thread=thread, parent_thread=None,
        tokens=np.arange(len(mask), dtype=np.int32), loss_mask=mask,
        logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        weight_versions=np.where(mask, 0, -1).astype(np.int32), turns=(index,), own_turns=(index,),
    )  # fmt: skip


ROLLOUT = [
    chain(0, "wipe", "main", 4),
    chain(1, "subagent", "a1", 3),
    chain(2, "compaction", "main", 1),
    chain(3, "final", "main", 8),
    chain(4, "wipe", "a2", 2),
    chain(5, "compaction", "a2", 1),
    chain(6, "subagent", "a2", 1),
    chain(7, "side", "main", 5),
]
"""Everything there is; 20 tokens besides the side request's 5."""


@pytest.mark.parametrize(
    ("reward", "advantages"),
    [
        ("copy", [2.1] * 7),
        ("uniform", [0.3] * 7),
        ("token_share", [0.42, 0.315, 0.105, 0.84, 0.21, 0.105, 0.105]),
        ("final_only", [0, 0, 0, 2.1, 0, 0, 0]),
        ("root_only", [2.1, 0, 2.1, 2.1, 0, 0, 0]),
    ],
)
def test_each_way_to_share_the_advantage(reward: RewardShare, advantages: list[float]) -> None:
    fan = fan_out("r", ROLLOUT, 2.1, config(reward))
    assert [sample.advantage for sample in fan.samples] == pytest.approx(advantages)
    assert fan.dropped == Counter(side=1)


def test_a_single_segment_gets_the_advantage_bit_for_bit_in_every_way() -> None:
    odd = 0.1 + 0.2
    for reward in REWARDS:
        (sample,) = fan_out("r", ROLLOUT[3:4], odd, config(reward)).samples
        assert sample.advantage == odd


def test_a_segment_without_a_share_is_in_the_average_and_has_no_gradient() -> None:
    fan = fan_out("r", ROLLOUT, 1.0, config("final_only"))
    shares = zip(fan.kinds, fan.samples, strict=True)
    assert {kind: sample.advantage for kind, sample in shares if sample.advantage} == {"final": 1.0}
    assert len(fan.samples) == 7
    assert weight_of([fan]) == pytest.approx([1.0])
    assert compute_token_weights([fan.samples])[3] == pytest.approx(1 / 20)


@pytest.mark.parametrize(
    ("fanout", "kept", "dropped"),
    [
        (config(train_side=True), [0, 1, 2, 3, 4, 5, 6, 7], Counter()),
        (config(train_compaction=False), [0, 1, 3, 4, 6], Counter(side=1, compaction=2)),
        (config(train_subagents=False), [0, 2, 3], Counter(side=1, subagent=4)),
        (
            config(train_subagents=False, train_compaction=False),
            [0, 3],
            Counter(side=1, subagent=4, compaction=1),
        ),
        (config(max_segments=3), [0, 1, 3], Counter(side=1, many=4)),
        (config(max_segments=1), [3], Counter(side=1, many=6)),
        (config(max_segment_tokens=6), [0, 1, 2, 4, 5, 6], Counter(side=1, long=1)),
        (config(max_segment_tokens=5, max_segments=2), [1, 2], Counter(side=1, long=2, many=3)),
        (collapse(None), [3], Counter(side=1, collapsed=6)),
        (collapse(9), [], Counter(side=1, collapsed=6, long=1)),
    ],
)
def test_every_dropped_segment_has_a_reason(
    fanout: FanoutConfig, kept: list[int], dropped: Counter[str]
) -> None:
    fan = fan_out("r", ROLLOUT, 1.0, fanout)
    assert [c.index for c in ROLLOUT for s in fan.samples if s.tokens is c.tokens] == kept
    assert fan.dropped == dropped


@pytest.mark.parametrize("fanout", [config(max_segment_tokens=6), collapse(6)])
def test_a_long_final_segment_loses_its_tail_and_keeps_what_it_sampled_before(
    fanout: FanoutConfig,
) -> None:
    final = chain(0, "final", "main", 8)
    routing = make_unrouted(
        RoutingShape(layers=2, top_k=1, experts=4, routed=(0, 1)), len(final.tokens)
    )
    cut = fanout.model_copy(update={"long_final": "cut"})
    fan = fan_out("r", [final], 1.0, cut, lambda segment: routing if segment is final else None)
    (sample,) = fan.samples
    assert sample.tokens.tolist() == final.tokens[:6].tolist()
    assert [len(a) for a in (sample.loss_mask, sample.logprobs)] == [6, 6]
    assert sample.routing is not None
    assert (len(sample.routing.experts), len(sample.routing.valid)) == (6, 6)
    assert (fan.kinds, fan.cut_tokens, fan.dropped.total()) == (["final"], 4, 0)
    assert sample.loss_mask.sum() == 4
    assert fan_out("r", [final], 1.0, fanout).dropped["long"] == 1


def test_a_long_segment_that_is_not_final_is_dropped_whole() -> None:
    capped = config(max_segment_tokens=6, long_final="cut")
    fan = fan_out("r", [chain(0, "wipe", "main", 8)], 1.0, capped)
    assert (fan.samples, fan.dropped["long"], fan.cut_tokens) == ([], 1, 0)


def test_a_final_segment_that_sampled_only_in_its_tail_is_dropped() -> None:
    capped = config(max_segment_tokens=6, long_final="cut")
    fan = fan_out("r", [chain(0, "final", "main", 3, prompt=6)], 1.0, capped)
    assert (fan.samples, fan.dropped["long"]) == ([], 1)


def test_the_share_of_a_cut_segment_counts_its_kept_tokens() -> None:
    capped = config("token_share", max_segment_tokens=6, long_final="cut")
    fan = fan_out("r", [chain(0, "wipe", "main", 4), chain(1, "final", "main", 9)], 1.0, capped)
    assert [sample.advantage for sample in fan.samples] == [0.5, 0.5]


def test_a_chain_that_sampled_nothing_takes_no_share() -> None:
    nothing = chain(1, "wipe", "main", 0)
    fan = fan_out("r", [ROLLOUT[0], nothing, ROLLOUT[3]], 1.0, config("uniform"))
    assert [sample.advantage for sample in fan.samples] == [0.5, 0.5]
    assert fan.dropped == Counter(empty=1)


def test_the_shares_of_kept_segments_sum_to_one() -> None:
    fan = fan_out("r", ROLLOUT, 1.0, config("uniform", max_segments=2))
    assert [sample.advantage for sample in fan.samples] == [0.5, 0.5]
    for reward in ("uniform", "token_share"):
        assert sum(compute_shares(ROLLOUT, reward)) == pytest.approx(1.0)


def test_a_rollout_without_segments_is_no_sample() -> None:
    for reward in REWARDS:
        assert fan_out("r", [], 1.0, config(reward)) == FanOut([], [], Counter())


@pytest.mark.parametrize(("most", "kept"), [(1, [6]), (2, [3, 6]), (4, [1, 3, 5, 6])])
def test_chains_that_ended_in_an_edit_push_no_other_over_the_cap(
    most: int, kept: list[int]
) -> None:
    sampled = {0: ("edit", 1), 1: ("wipe", 1), 2: ("edit", 1), 3: ("edit", 9), 4: ("edit", 1)}
    chains = [chain(index, kind, "main", n) for index, (kind, n) in sampled.items()]  # type: ignore[arg-type]
    chains += [chain(5, "subagent", "a1", 1), chain(6, "final", "main", 2)]
    fan = fan_out("r", chains, 1.0, config(max_segments=most))
    assert [c.index for c in chains for s in fan.samples if s.tokens is c.tokens] == kept
    assert fan.dropped == Counter(many=7 - most)
