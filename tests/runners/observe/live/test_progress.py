"""Progress counts what happens, and its snapshots do not change."""

from __future__ import annotations

import time

import pytest

from runners.observe.live.progress import Progress


def test_a_snapshot_no_longer_changes() -> None:
    progress = Progress("run", 10)
    progress.begin_phase("rollouts", 4)
    progress.add_rollout("policy.finished", 50)
    progress.add_step(1, 0.5, 0.25, 2.0)
    progress.add_evaluation(1, 0.75)
    progress.add_note("one")
    with progress.watch.attempt("a") as attempt:
        attempt.enter("boot")
        before = progress.snapshot()
    assert not progress.snapshot().in_flight
    progress.add_rollout("budget.turns", 50)
    progress.add_step(2, 0.5, 0.25, 2.0)
    progress.add_evaluation(2, 0.75)
    progress.add_note("two")
    assert (before.batch_done, before.sampled_tokens, before.step) == (1, 50, 1)
    assert (dict(before.in_flight), dict(before.outcomes)) == ({"boot": 1}, {"policy.finished": 1})
    assert (before.rewards, before.solve_rates) == ([(1, 0.5)], [(1, 0.25)])
    assert (before.evaluations, list(before.notes)) == ([(1, 0.75)], ["one"])


def test_the_time_left_is_that_of_the_last_steps() -> None:
    progress = Progress("run", 10)
    assert progress.eta_s() is None
    for step, seconds in enumerate([100.0, 1.0, 2.0, 3.0, 2.0, 2.0], 1):
        progress.add_step(step, 0.0, 0.0, seconds)
    assert progress.eta_s() == 4 * 2.0
    progress.begin_phase("rollouts", 4)
    progress.add_rollout("policy.finished", 1)
    assert progress.eta_s() == 3.75 * 2.0
    progress.add_step(10, 0.0, 0.0, 2.0)
    assert progress.eta_s() == 0.0


def test_old_tokens_leave_the_rate() -> None:
    progress = Progress("run", 10, started_at=time.monotonic() - 1000)
    progress.recent.append((time.monotonic() - 900, 10**9))
    progress.add_rollout("policy.finished", 3000)
    assert 90 < progress.tokens_per_s <= 100
    assert len(progress.recent) == 1


def test_a_step_without_a_grade_is_a_note_and_no_point_of_a_curve() -> None:
    progress = Progress("run", 10)
    progress.add_step(1, None, None, 2.0)
    progress.add_step(2, 0.5, 0.25, 3.0)
    assert (progress.step, progress.rewards, progress.step_s) == (2, [(2, 0.5)], [3.0])
    assert list(progress.notes) == ["step 1: no rollout was graded"]


def test_a_supervised_step_says_what_it_trained() -> None:
    progress = Progress("run", 10)
    known = {"sft/examples": 8, "sft/tokens": 1234, "sft/nll": 2.5, "time/step_s": 1.25}
    progress.add_step_metrics(1, {**known, "train/reward_mean": None})
    assert (progress.step, progress.rewards) == (1, [])
    assert list(progress.notes) == [
        "step 1: 8 examples, 1,234 tokens trained, loss 2.5000 per token, 1.2 s"
    ]


def test_tokens_are_sampled_without_a_rollout_that_ended() -> None:
    progress = Progress("run", 10)
    progress.recent.append((time.monotonic() - 900, 10**9))
    progress.add_tokens(3000)
    assert (progress.sampled_tokens, progress.batch_done) == (3000, 0)
    assert [tokens for _, tokens in progress.recent] == [3000]


def test_each_note_is_shown_once_even_when_many_come() -> None:
    progress = Progress("run", 10)
    progress.add_note("a")
    assert progress.notes_since(0) == ["a"]
    for number in range(20):
        progress.add_note(str(number))
    assert progress.notes_since(1) == [str(number) for number in range(12, 20)]
    assert progress.notes_since(20) == ["19"]
    assert progress.notes_since(21) == []


def test_an_evaluation_without_a_grade_is_no_point_of_the_curve() -> None:
    progress = Progress("run", 10)
    progress.add_evaluation(0, None)
    assert progress.evaluations == []
    assert "no held-out rollout was graded" in progress.notes[0]


def test_a_run_without_steps_estimates_the_time_left_from_its_rollouts() -> None:
    progress = Progress("run", steps=0)
    assert progress.eta_s() is None
    progress.begin_phase("rollouts", 4)
    progress.phase_at -= 30.0
    progress.add_rollout("policy.finished", 1)
    assert progress.eta_s() == pytest.approx(90.0, abs=1.0)
