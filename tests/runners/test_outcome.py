"""Outcomes: closed lists and one table."""

from __future__ import annotations

from runners.outcome import MEANING, Outcome, OutcomeClass, OutcomeCode, Stage


def test_every_code_belongs_to_a_class_with_a_meaning() -> None:
    assert {code.outcome_class for code in OutcomeCode} == set(OutcomeClass) == set(MEANING)


def test_infrastructure_failure_is_never_a_reward_nor_trained() -> None:
    for code in OutcomeCode:
        meaning = Outcome(code, Stage.HARNESS).meaning
        if code.outcome_class not in (OutcomeClass.POLICY, OutcomeClass.BUDGET):
            assert not meaning.reward_counts
            assert not meaning.trained


def test_a_long_message_is_cut_to_512_characters() -> None:
    assert len(Outcome(OutcomeCode.INTERNAL_ERROR, Stage.GRADE, "x" * 9999).message) == 512
