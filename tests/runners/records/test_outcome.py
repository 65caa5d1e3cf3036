"""Outcomes: closed lists, one table, and the legal ways through an attempt."""

from __future__ import annotations

import pytest

from runners.records.outcome import (
    MEANING,
    TRANSITIONS,
    Outcome,
    OutcomeClass,
    OutcomeCode,
    Stage,
    advance,
)


def test_every_code_belongs_to_a_class_with_a_meaning() -> None:
    assert {code.outcome_class for code in OutcomeCode} == set(OutcomeClass) == set(MEANING)


def test_infrastructure_failure_is_never_a_reward_nor_trained_nor_unsolved() -> None:
    for code in OutcomeCode:
        meaning = Outcome(code, Stage.HARNESS).meaning
        if code.outcome_class not in (OutcomeClass.POLICY, OutcomeClass.BUDGET):
            assert not meaning.reward_counts
            assert not meaning.trained
            assert not meaning.in_baseline
            assert meaning.eval_column != "verdict"


def test_a_cancelled_rollout_is_not_retried() -> None:
    retried = {kind for kind in OutcomeClass if MEANING[kind].retryable}
    assert retried == {OutcomeClass.INFRA, OutcomeClass.GRADER, OutcomeClass.INTERNAL}


def test_every_stage_leads_to_the_end_and_none_back() -> None:
    assert set(TRANSITIONS) == set(Stage)
    order = list(Stage)
    for stage, following in TRANSITIONS.items():
        assert all(order.index(later) > order.index(stage) for later in following)
        assert Stage.END in following or stage is Stage.END


def test_an_illegal_step_is_refused() -> None:
    assert advance(Stage.QUEUE, Stage.SESSION) is Stage.SESSION
    with pytest.raises(ValueError, match="cannot go from grade to harness"):
        advance(Stage.GRADE, Stage.HARNESS)


def test_a_long_message_is_cut_to_512_characters() -> None:
    assert len(Outcome(OutcomeCode.INTERNAL_ERROR, Stage.GRADE, "x" * 9999).message) == 512
