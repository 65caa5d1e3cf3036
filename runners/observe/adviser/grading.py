"""A grader that gives no verdict, or always the same one."""

from __future__ import annotations

from collections.abc import Sequence

from runners.observe.adviser.alarm import Alarm, share
from runners.observe.adviser.history import History, StepFacts, count_outcomes, mean_of, name_steps
from runners.records.outcome import OutcomeClass

_STEPS = 2
_LEAST = 4
_FAILING = 0.25
_BEFORE = 5
"""Steps by whose solve rate verdicts are expected."""
_CHANCE = 1e-6
"""Probability from which equal verdicts are none. So small because rollouts of a task are alike."""
_RARE = 0.05
"""Solve rate below which a policy is likelier to have changed than its grader."""
_EASY = 0.7
"""Solve rate beyond which a step that solves everything is no wonder."""
_GOLD = "grade the reference patches (agentrl tasks check) and "


def find_dead_grader(history: History) -> Alarm | None:
    """Find grading that fails, or gives every rollout the same verdict from some step on."""
    last = history.last(1) if len(history.steps) < _STEPS else history.last(_STEPS)
    ended = sum(sum(step.outcomes.values()) + sum(step.replaced.values()) for step in last)
    failed = count_outcomes(last, lambda kind: kind is OutcomeClass.GRADER, replaced=True)
    if failed.total() >= max(_LEAST, _FAILING * ended):
        [(code, number)] = failed.most_common(1)
        return Alarm(
            "dead_grader",
            f"{share(failed.total(), ended)} attempts have no verdict in {name_steps(last)}, "
            f"{number:,} of {code}",
            _GOLD + "raise rollout.deadlines.grade_s if they time out; the messages are in agentrl "
            "report, under Failures",
        )
    for verdict, word in ((0.0, "none"), (1.0, "every one")):
        same = _trailing(history.steps, verdict)
        before = history.steps[: len(history.steps) - len(same)][-_BEFORE:]
        rate, graded = mean_of(before, "train/solve_rate"), sum(step.graded for step in same)
        if not same or rate is None or not _RARE <= rate <= (_EASY if verdict else 1.0):
            continue
        if (rate if verdict else 1.0 - rate) ** graded < _CHANCE:
            return Alarm(
                "dead_grader",
                f"{word} of {graded:,} rollouts is solved in {name_steps(same)}; {rate:.0%} were "
                f"in {name_steps(before)}",
                _GOLD
                + "the empty ones: if the verdicts are right, the policy has changed; go back "
                "by model.path=RUN with a lower trainer.learning_rate",
            )
    return None


def _trailing(steps: Sequence[StepFacts], rate: float) -> Sequence[StepFacts]:
    """Return the last steps in a row that have this solve rate."""
    number = 0
    while number < len(steps) and steps[-1 - number].number("train/solve_rate") == rate:
        number += 1
    return steps[len(steps) - number :]
