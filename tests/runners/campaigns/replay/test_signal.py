"""Branches and trained tokens of a session, against those of its replay."""

from __future__ import annotations

from dataclasses import replace

from runners.campaigns.replay.signal import measure_signal
from tests.fakes.turn_graphs import make_turn

FIRST = make_turn(0, 0, None, 0, [1, 2], [3, 4, 5])
NEXT = make_turn(1, 0, 0, 5, [6], [7, 8])
SUB = replace(
    make_turn(2, 1, None, 0, [9], [10]), branch="subagent", thread="a", parent_thread="main"
)


def test_an_equal_session_loses_nothing_whatever_its_threads_are_called() -> None:
    replayed = [FIRST, NEXT, replace(SUB, thread="b")]
    found = measure_signal([FIRST, NEXT, SUB], replayed, dict(enumerate(replayed)))
    assert (found.recorded, found.replayed, found.lost, found.moved) == (6, 6, 0, {})
    assert found.chains == {"final": (1, 1), "subagent": (1, 1)}


def test_the_tokens_of_an_answer_that_nobody_asked_for_are_lost() -> None:
    found = measure_signal([FIRST, NEXT], [FIRST], {0: FIRST})
    assert (found.recorded, found.lost, found.moved) == (5, 2, {})


def test_a_turn_that_is_a_side_request_now_is_lost_and_named() -> None:
    aside = replace(SUB, branch="side", thread="main", parent_thread=None)
    found = measure_signal([FIRST, NEXT, SUB], [FIRST, NEXT, aside], {0: FIRST, 1: NEXT, 2: aside})
    assert found.moved == {"subagent → side": 1}
    assert found.lost == 1
    assert found.chains["side"] == (0, 1)


def test_a_break_makes_another_chain_and_loses_nothing() -> None:
    anew = replace(NEXT, parent=None, prompt_kept=0, segment=1)
    found = measure_signal([FIRST, NEXT], [FIRST, anew], {0: FIRST, 1: anew})
    assert (found.lost, found.moved) == (0, {})
    assert found.chains == {"final": (1, 1), "wipe": (0, 1)}


def test_the_summary_of_a_sub_agent_is_another_branch_than_that_of_the_main_agent() -> None:
    summed = replace(SUB, branch="compaction")
    by_main = replace(summed, thread="main", parent_thread=None)
    found = measure_signal([FIRST, NEXT, summed], [FIRST, NEXT, by_main], {2: by_main})
    assert found.moved == {"compaction of a sub-agent → compaction": 1}
