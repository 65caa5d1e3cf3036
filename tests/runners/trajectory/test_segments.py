from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.trajectory.record import Turn
from runners.trajectory.segments import ChainError, segments

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5)


def turn(index: int, segment: int, kept: int, new: list[int], output: list[int]) -> Turn:
    return Turn(
        session_id="s",
        index=index,
        branch="main",
        segment=segment,
        prompt_kept=kept,
        prompt_new=np.array(new, np.int32),
        output_ids=np.array(output, np.int32),
        output_logprobs=np.array([-index - i / 8 for i in range(len(output))], np.float32),
        weight_version=index + 3,
        finish_reason="stop",
        break_reason=None,
        malformed_calls=0,
        request={},
        response={},
        usage={},
        started_at=0.0,
        engine_s=0.0,
        total_s=0.0,
    )


@st.composite
def sessions(draw: st.DrawFn) -> tuple[list[Turn], list[tuple[list[int], list[int]]]]:
    """Draw turns over a few interleaved chains, with the prompt and output of each."""
    chains: dict[int, list[int]] = {}
    turns: list[Turn] = []
    seen: list[tuple[list[int], list[int]]] = []
    for index in range(draw(st.integers(0, 8))):
        segment = draw(st.integers(0, min(len(chains), 3)))
        held = chains.setdefault(segment, [])
        new, output = draw(IDS), draw(IDS)
        turns.append(turn(index, segment, len(held), new, output))
        seen.append((held + new, output))
        chains[segment] = held + new + output
    return turns, seen


@given(sessions())
def test_every_sampled_token_is_masked_in_once_after_exactly_the_prompt_the_model_saw(
    session: tuple[list[Turn], list[tuple[list[int], list[int]]]],
) -> None:
    turns, seen = session
    chains = segments(turns)
    assert sorted(index for chain in chains for index in chain.turns) == list(range(len(turns)))
    for chain in chains:
        tokens, trained = chain.tokens.tolist(), []
        for index in chain.turns:
            prompt, output = seen[index]
            assert tokens[: len(prompt) + len(output)] == prompt + output
            trained += list(range(len(prompt), len(prompt) + len(output)))
            span = slice(len(prompt), len(prompt) + len(output))
            assert chain.logprobs[span].tolist() == turns[index].output_logprobs.tolist()
            assert set(chain.weight_versions[span].tolist()) <= {index + 3}
        assert np.flatnonzero(chain.loss_mask).tolist() == trained
        assert not chain.logprobs[~chain.loss_mask].any()
        assert set(chain.weight_versions[~chain.loss_mask].tolist()) <= {-1}
    kinds = [chain.kind for chain in chains if chain.turns[-1] == len(turns) - 1]
    assert kinds == (["final"] if turns else [])
    assert sum(chain.kind == "wipe" for chain in chains) == max(0, len(chains) - 1)


GOOD = [turn(0, 0, 0, [1, 2], [3]), turn(1, 0, 3, [4], [5, 6]), turn(2, 0, 6, [7], [8])]


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([GOOD[0], GOOD[2]], "missing, doubled or foreign"),
        ([GOOD[0], GOOD[0]], "missing, doubled or foreign"),
        ([GOOD[0], replace(GOOD[1], session_id="t")], "missing, doubled or foreign"),
        ([GOOD[0], replace(GOOD[1], prompt_kept=2)], "keeps 2 tokens of a chain of 3"),
        ([replace(GOOD[0], prompt_kept=1)], "keeps 1 tokens of a chain of 0"),
        ([replace(GOOD[0], output_logprobs=np.zeros(2, np.float32))], "1 sampled tokens and 2"),
    ],
)
def test_turns_that_contradict_each_other_are_refused(turns: list[Turn], message: str) -> None:
    assert len(segments(GOOD)) == 1
    with pytest.raises(ChainError, match=message):
        segments(turns)
