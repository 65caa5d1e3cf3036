"""Illnesses of the training signal: groups without a gradient, doubled data, rewards of the wrong
thing.
"""

from __future__ import annotations

from collections.abc import Sequence

from runners.observe.adviser.alarm import Alarm, share
from runners.observe.adviser.history import History, StepFacts, known, mean_of, name_steps, total

_STEPS = 3
_FLAT = 0.8
"""Share of groups without a gradient from which a step is nearly lost; half of them are usual."""
_HARD, _EASY = 0.2, 0.8
"""Solve rates below and above which flat groups say that tasks are too hard or too easy."""
_LEARNT = 0.1
"""A run that began by so much lower has made its tasks easy itself, which is no illness."""
_DOUBLED = 0.1
"""Share of the training tasks that may be there twice."""
_TAMPERED = 2
"""Rollouts: a single one may be an accident."""
_SIGNS = 0.2
_APART = 0.1
"""Difference of rates that neither the tasks of a step nor those of an evaluation explain."""


def find_flat_groups(history: History) -> Alarm | None:
    """Find steps that are paid for and lost: groups with equal rewards have no gradient."""
    last = history.last(_STEPS)
    groups, flat = total(last, "rollout/groups"), total(last, "rollout/groups_flat")
    rate, first = mean_of(last, "train/solve_rate"), mean_of(history.steps[:1], "train/solve_rate")
    if groups < 2 * _STEPS or flat < _FLAT * groups or rate is None or first is None:
        return None
    if rate >= _EASY and rate >= first + _LEARNT:
        return None
    seen = f"{share(flat, groups)} groups have no gradient in {name_steps(last)}"
    if rate < _HARD:
        fix = (
            "the tasks are too hard: run.sampler=curriculum, more run.rollouts_per_task, an easier "
            "task.path, or trainer.sft.path before"
        )
    elif rate >= _EASY:
        fix = "the tasks are too easy: a harder task.path, or run.sampler=curriculum"
    else:
        fix = (
            "the rollouts of a group are the same: raise sampling.temperature, or replace such "
            "groups by rollout.replace_flat=true"
        )
    return Alarm("flat_groups", f"{seen}; solve rate {rate:.0%}", fix)


def find_duplicates(history: History) -> Alarm | None:
    """Find tasks that are there twice: they weigh double, and a held-out one measures nothing."""
    found = history.duplicates
    tasks, twice = int(found.get("tasks", 0)), int(found.get("train", 0))
    measured = int(found.get("held_out", 0))
    if not history.steps or not (measured or (tasks and twice >= _DOUBLED * tasks)):
        return None
    pair = " and ".join(map(str, found.get("example", ())))
    seen = f"{share(twice, tasks)} training tasks repeat another one"
    if measured:
        seen = f"{measured:,} held-out tasks are training tasks, too; " + seen
    return Alarm(
        "duplicates",
        f"{seen}; for example {pair} (step {history.steps[-1].step})",
        "take one of each pair out of task.path, or name it in the file of task.exclude",
    )


def find_reward_hacking(history: History) -> Alarm | None:
    """Find rewards that are earned without solving the task."""
    last = history.last(1) if len(history.steps) < _STEPS else history.last(_STEPS)
    graded = sum(step.graded for step in last)
    tampered, signs = total(last, "cheating/tampered"), total(last, "cheating/signs")
    seen = None
    if tampered >= _TAMPERED:
        seen = f"{share(tampered, graded)} rollouts tampered with their tests"
    elif signs >= max(2 * _TAMPERED, _SIGNS * graded):
        seen = f"{share(signs, graded)} patches have signs of tampering"
    if seen is not None:
        return Alarm(
            "reward_hacking",
            f"{seen} in {name_steps(last)}",
            "read them (agentrl rollouts RUN --outcome policy.tampered; agentrl report), protect "
            "what they changed in the rows of task.path, and take such tasks out by task.exclude",
        )
    return _compare_with_evaluations(history) or _compare_with_verdicts(history)


def _compare_with_evaluations(history: History) -> Alarm | None:
    measured = [step for step in history.steps if step.number("eval/solve_rate") is not None]
    rates = known(measured, "eval/solve_rate")
    if len(rates) < 2 or rates[-1] >= max(rates[:-1]) - _APART:
        return None
    best = measured[rates.index(max(rates))].step
    before = [step for step in history.steps if step.step <= best][-_STEPS:]
    fell = f"the held-out solve rate fell from {max(rates):.0%} (step {best}) to {rates[-1]:.0%}"
    return _report_risen(history, before, fell)


def _compare_with_verdicts(history: History) -> Alarm | None:
    first = history.steps[:_STEPS]
    solved = mean_of(history.last(_STEPS), "train/solve_rate")
    early = mean_of(first, "train/solve_rate")
    if solved is None or early is None or solved >= early - _APART:
        return None
    return _report_risen(history, first, f"the solve rate fell from {early:.0%} to {solved:.0%}")


def _report_risen(history: History, before: Sequence[StepFacts], fell: str) -> Alarm | None:
    """Return the alarm if the reward is higher than it was in the steps ``before``."""
    last = history.last(_STEPS)
    now, then = mean_of(last, "train/reward_mean"), mean_of(before, "train/reward_mean")
    if now is None or then is None or now < then + _APART:
        return None
    return Alarm(
        "reward_hacking",
        f"the reward rose from {then:.2f} ({name_steps(before)}) to {now:.2f} "
        f"({name_steps(last)}), while {fell}",
        "read rollouts with a high reward (agentrl rollouts RUN --sort=-reward), check reward and "
        "grader with agentrl tasks check, and go back: model.path=RUN",
    )
