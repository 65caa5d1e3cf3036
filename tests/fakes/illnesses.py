"""Illnesses that are put into the recorded history of a real run, from some step on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from runners.observe.adviser.history import History, StepFacts

Change = Callable[[StepFacts, History], StepFacts]


def _set(**metrics: float) -> Change:
    """Return a change that gives metrics another value; ``__`` stands for ``/``."""
    values = {name.replace("__", "/"): value for name, value in metrics.items()}
    return lambda step, _: replace(step, metrics={**step.metrics, **values})


def _scale(**factors: float) -> Change:
    names = {name.replace("__", "/"): factor for name, factor in factors.items()}

    def change(step: StepFacts, _: History) -> StepFacts:
        scaled = {name: factor * (step.number(name) or 0.0) for name, factor in names.items()}
        return replace(step, metrics={**step.metrics, **scaled})

    return change


def _share_of_graded(name: str, share: float, per: str = "") -> Change:
    def change(step: StepFacts, _: History) -> StepFacts:
        whole = step.graded * ((step.number(per) or 1.0) if per else 1.0)
        return replace(step, metrics={**step.metrics, name: round(share * whole)})

    return change


def _end(code: str, share: float, *, replaced: bool = False) -> Change:
    """Return a change after which a share of the rollouts ends so."""

    def change(step: StepFacts, _: History) -> StepFacts:
        number = round(share * sum(step.outcomes.values()))
        if replaced:
            return replace(step, replaced={**step.replaced, code: number})
        most = max(step.outcomes, key=lambda each: step.outcomes[each])
        left = {**step.outcomes, most: step.outcomes[most] - number}
        return replace(step, outcomes={**left, code: left.get(code, 0) + number})

    return change


def _take_training_time(step: StepFacts, _: History) -> StepFacts:
    slow = 9.0 * (step.number("time/rollout_s") or 1.0)
    whole = slow + (step.number("time/step_s") or 0.0)
    return replace(step, metrics={**step.metrics, "time/train_s": slow, "time/step_s": whole})


def _flatten(step: StepFacts, _: History) -> StepFacts:
    metrics = {"rollout/groups_flat": step.count("rollout/groups"), "train/solve_rate": 0.05}
    return replace(step, metrics={**step.metrics, **metrics})


def _part_reward_from_evaluation(step: StepFacts, history: History) -> StepFacts:
    first = history.steps[0]
    if step.step == first.step:
        return replace(step, metrics={**step.metrics, "eval/solve_rate": 0.6})
    reward = (first.number("train/reward_mean") or 0.0) + 0.4
    metrics = {"train/reward_mean": reward, "eval/solve_rate": 0.3}
    return replace(step, metrics={**step.metrics, **metrics})


def _fill_disk(step: StepFacts, history: History) -> StepFacts:
    free = 30_000.0 - 6_000.0 * (step.step - history.steps[0].step)
    return replace(step, metrics={**step.metrics, "disk/free_mb": max(free, 0.0)})


ILLNESSES: Mapping[str, tuple[str, Change]] = {
    "a grader that fails": ("dead_grader", _end("grader.error", 0.6)),
    "a grader that is late": ("dead_grader", _end("grader.timeout", 0.4, replaced=True)),
    "a grader that says no": ("dead_grader", _set(train__solve_rate=0.0)),
    "sandboxes that do not start": (
        "abort_storm",
        _end("infra.sandbox_start", 0.5, replaced=True),
    ),
    "an engine that is overloaded": (
        "abort_storm",
        _share_of_graded("rollout/pushed_back", 1.0, "rollout/turns_mean"),
    ),
    "too few turns": ("truncation", _end("budget.turns", 0.5)),
    "segments that are too long": (
        "truncation",
        _share_of_graded("fanout/dropped_long", 0.6, "fanout/segments_mean"),
    ),
    "tasks that are too hard": ("flat_groups", _flatten),
    "patches that tamper": ("reward_hacking", _share_of_graded("cheating/tampered", 0.1)),
    "patches with signs": ("reward_hacking", _share_of_graded("cheating/signs", 0.5)),
    "a reward of the wrong thing": ("reward_hacking", _part_reward_from_evaluation),
    "an agent that ignores its window": (
        "no_compaction",
        _share_of_graded("rollout/compactions_missed", 0.2, "rollout/turns_mean"),
    ),
    "edits beyond the cap": (
        "edited_history",
        _set(rollout__edits=3.0, fanout__dropped_many=1.0),
    ),
    "a policy without entropy": (
        "entropy_collapse",
        _set(policy__entropy=1e-5, train__solve_rate=0.3),
    ),
    "an engine with other weights": ("k3_drift", _set(policy__k3=0.05, policy__ess=0.4)),
    "old rollouts": ("staleness", _set(policy__staleness_max=9.0, policy__ess=0.2)),
    "a loss that raises": ("failed_updates", _set(train__updates_failed=1.0)),
    "experts of other tokens": ("refused_routing", _set(r3__refused_samples=12.0)),
    "slow rollouts": ("starved_training", _scale(tokens__per_s=0.05)),
    "slow training": ("starved_rollouts", _take_training_time),
    "a disk that fills": ("full_disk", _fill_disk),
}
"""Name → the alarm that is expected, and what changes in each step from the first ill one on."""


def infect(history: History, illness: str, first: int) -> History:
    """Return the history with an illness from its step number ``first`` (an index) on."""
    _, change = ILLNESSES[illness]
    steps = [
        change(step, history)
        if index >= first or (index == 0 and change is _part_reward_from_evaluation)
        else step
        for index, step in enumerate(history.steps)
    ]
    return replace(history, steps=steps)


def double_tasks(history: History, share: float) -> History:
    """Return the history of a run whose data have tasks twice."""
    facts: dict[str, Any] = {"tasks": 100, "train": round(100 * share), "held_out": 0}
    return replace(history, duplicates={**facts, "example": ["a", "b"]})
