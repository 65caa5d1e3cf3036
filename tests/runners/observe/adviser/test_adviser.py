"""The adviser names what is ill within three steps, and nothing in runs that are well."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.compose import compose
from conf.keys import flatten
from runners.observe.adviser.adviser import advise
from runners.observe.adviser.alarm import Alarm
from runners.observe.adviser.history import History, StepFacts
from runners.records.outcome import OutcomeCode
from tests.fakes.illnesses import ILLNESSES, double_tasks, infect
from tests.fakes.recorded_runs import healthy_runs, ill_run

WELL = healthy_runs()
WITHIN = 3
FIRST = 4
"""Steps before an illness begins, where a run has so many."""
FEW = ("well-linear-0a", "well-linear-1-curriculum", "well-mixed-0c")
OTHERS = [
    name for name in WELL if name not in FEW and not any(w in name for w in ("small", "short"))
]
"""Of 8 rollouts a step nobody can tell within three steps that a grader always says no."""
SLOW = pytest.mark.slow


def seen(history: History) -> dict[str, tuple[int, Alarm]]:
    """Return each alarm by its name with the first step after which it was raised."""
    found: dict[str, tuple[int, Alarm]] = {}
    for step in history.steps:
        for alarm in advise(history.until(step.step)):
            found.setdefault(alarm.name, (step.step, alarm))
    return found


def test_there_are_twenty_healthy_runs_to_be_silent_in() -> None:
    assert len(WELL) >= 20


@pytest.mark.parametrize("name", WELL)
def test_a_healthy_run_has_no_alarm(name: str) -> None:
    assert not seen(WELL[name])


@pytest.mark.parametrize("illness", ILLNESSES)
@pytest.mark.parametrize("name", [*FEW, *(pytest.param(name, marks=SLOW) for name in OTHERS)])
def test_an_illness_is_named_within_three_steps(name: str, illness: str) -> None:
    history = WELL[name]
    first = min(FIRST, len(history.steps) - WITHIN)
    found = seen(infect(history, illness, first))
    expected, _ = ILLNESSES[illness]
    assert expected in found, found
    step, alarm = found[expected]
    assert step <= history.steps[first].step + WITHIN - 1
    assert re.search(r"steps? \d", alarm.evidence)


@pytest.mark.parametrize(
    ("name", "expected", "by"),
    [
        ("collapsed-early", "dead_grader", 6),
        ("collapsed-late", "policy_collapse", 60),
        ("never-solved", "truncation", 12),
        ("flat-from-the-start", "flat_groups", 15),
        ("random-policy", "flat_groups", 3),
    ],
)
def test_a_real_run_that_went_wrong_is_named(name: str, expected: str, by: int) -> None:
    step, _ = seen(ill_run(name))[expected]
    assert step <= by


def test_bad_luck_of_a_small_run_is_no_dead_grader() -> None:
    """A quarter was solved; none of 16 has probability 0.01, none of 64 has 1e-8."""

    def history(rollouts: int) -> History:
        rates = (0.25, 0.25, 0.25, 0.0, 0.0)
        return History(
            {},
            [
                StepFacts(step, {"train/solve_rate": rate}, {"policy.finished": rollouts})
                for step, rate in enumerate(rates, 1)
            ],
        )

    assert "dead_grader" not in seen(history(8))
    assert seen(history(32))["dead_grader"][0] == 5


def test_doubled_tasks_are_named_from_the_first_step_on() -> None:
    [history] = [WELL["well-linear-0a"]]
    step, alarm = seen(double_tasks(history, 0.3))["duplicates"]
    assert (step, "30 of 100 (30 %)" in alarm.evidence) == (1, True)
    assert not seen(double_tasks(history, 0.05))


@pytest.mark.parametrize(
    ("values", "stops"),
    [
        ((7.7, 7.9, 6.9), True),  # SGLang without the output layer of a tied mixture, on an H100
        ((7.7, 7.9, 0.02), False),
        ((1e-5, 1e-5, 0.9, 0.9), False),
        ((0.02, 0.03, 0.02), False),
    ],
)
def test_an_engine_of_another_policy_from_the_start_is_no_question_of_bounds(
    values: tuple[float, ...], stops: bool
) -> None:
    history = [StepFacts(step, {"policy/k3": value}) for step, value in enumerate(values, 1)]
    [alarm] = advise(History({}, history))
    assert alarm.name == "k3_drift"
    assert alarm.fix.startswith("stop the run" if stops else "bound it by")


def test_flat_groups_of_a_policy_that_learnt_its_tasks_are_no_illness() -> None:
    history = WELL["well-mixed-0c"]
    solved = {"rollout/groups_flat": 8, "train/solve_rate": 1.0, "train/reward_mean": 1.0}
    steps = [*history.steps[:-4]]
    steps += [replace(s, metrics={**s.metrics, **solved}) for s in history.steps[-4:]]
    assert "flat_groups" not in seen(replace(history, steps=steps))
    easy = [replace(s, metrics={**s.metrics, **solved}) for s in history.steps]
    _, alarm = seen(replace(history, steps=easy))["flat_groups"]
    assert "too easy" in alarm.fix


def test_a_count_that_is_no_number_counts_nothing() -> None:
    for value in (math.inf, math.nan, None, "3"):
        assert StepFacts(1, {"cheating/signs": value}).count("cheating/signs") == 0


def test_every_key_that_a_fix_names_exists() -> None:
    keys = {key for choice in ([], ["harness=claude_code"]) for key, _ in _keys(choice)}
    named: set[str] = set()
    for illness in ILLNESSES:
        for _, alarm in seen(infect(WELL["well-mixed-0c"], illness, FIRST)).values():
            named |= set(re.findall(r"\b[a-z]+(?:\.[a-z_]+)+\b", alarm.fix))
    for name in ("collapsed-early", "collapsed-late", "never-solved"):
        for _, alarm in seen(ill_run(name)).values():
            named |= set(re.findall(r"\b[a-z]+(?:\.[a-z_]+)+\b", alarm.fix))
    assert named
    known = {*keys, "task.path", "task.exclude", "policy.tampered", "trainer.loss"}
    assert not named - known


def _keys(choice: list[str]) -> list[tuple[str, Any]]:
    return list(flatten(compose(choice).model_dump(mode="json")))


METRICS = sorted({name for history in WELL.values() for s in history.steps for name in s.metrics})
COUNTS = st.dictionaries(st.sampled_from([code.value for code in OutcomeCode]), st.integers(0, 99))
STEP = st.builds(
    StepFacts,
    st.integers(1, 20),
    st.dictionaries(
        st.sampled_from(METRICS),
        st.none() | st.floats(allow_nan=False) | st.integers(0, 10**6) | st.text(max_size=2),
    ),
    COUNTS,
    COUNTS,
)


@given(st.lists(STEP, max_size=8))
def test_no_history_makes_the_adviser_fail(steps: list[StepFacts]) -> None:
    advise(History({"run": {"steps": 9, "overlap": "stream"}}, steps))


@pytest.mark.parametrize(
    ("harness", "dropped", "is_ill"),
    [
        ({"kind": "claude_code"}, 0, True),
        ({"kind": "command", "name": "pi"}, 0, True),
        ({"kind": "command", "name": "mine"}, 0, False),
        ({"kind": "command", "name": "mine"}, 1, True),
        ({"kind": "custom"}, 0, False),
    ],
)
def test_changed_answers_are_an_alarm_where_nobody_changes_them_or_the_cap_drops_others(
    harness: dict[str, str], dropped: int, is_ill: bool
) -> None:
    def history(edits: int) -> History:
        figures = {"rollout/edits": edits, "fanout/dropped_many": dropped}
        step = StepFacts(1, figures, {OutcomeCode.POLICY_FINISHED: 20})
        return History({"harness": harness}, [step])

    assert ("edited_history" in seen(history(1))) == is_ill
    assert "edited_history" not in seen(history(0))
