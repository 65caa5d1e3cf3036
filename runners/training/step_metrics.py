"""The metrics of a step's rollouts, before anything is trained on them.

Invariant: the keys are the same in every step; a figure of nothing is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

import numpy as np

from runners.training.step_samples import StepSamples
from runners.trajectory.counters import SUMMED_COUNTERS
from runners.trajectory.outcome import OutcomeCode
from runners.trajectory.record import TASK_SET, RolloutRecord, SegmentKind


def step_metrics(step: StepSamples, rollout_s: float, sets: Iterable[str] = ()) -> dict[str, Any]:
    """Return the metrics of a step's rollouts; where a grade is needed, of the graded ones.

    ``rollout_s``: seconds that the step's rollouts took. ``sets``: names of a mixture's sets, each
    of which has its own ``train/solve_rate/NAME`` and ``rollout/groups/NAME``. ``cheating/`` counts
    rollouts that canaries accused, that have static signs, or that no canary could check;
    ``fanout/`` counts segments, ``tokens/`` sampled tokens.
    """
    graded = [record for record in step.records if record.reward is not None]
    rewards = [record.reward for record in graded if record.reward is not None]
    sampled = sum(record.sampled_tokens for record in graded)
    trained = step.trained.total()
    tool_turns = [record.tool_turns or 0 for record in graded]
    return {
        "train/reward_mean": mean(rewards),
        "train/solve_rate": mean([float(bool(record.solved)) for record in graded]),
        **_metrics_by_set(step, graded, sets),
        "train/solved_in_part": mean([float(bool(_finding(r, "solved_in_part"))) for r in graded]),
        "rollout/turns_mean": mean([float(record.turns) for record in graded]),
        "rollout/turns_max": max((record.turns for record in graded), default=0),
        "rollout/tool_turns_mean": mean([float(turns) for turns in tool_turns]),
        "rollout/tool_turns_min": min(tool_turns, default=0),
        "rollout/tool_turns_max": max(tool_turns, default=0),
        "rollout/ungraded": len(step.records) - len(graded),
        "cheating/tampered": sum(
            record.outcome.code is OutcomeCode.POLICY_TAMPERED for record in graded
        ),
        "cheating/signs": sum(bool(_finding(record, "signs")) for record in graded),
        "cheating/unverified": sum(bool(_finding(record, "unverified")) for record in graded),
        "rollout/retried": sum(record.attempt > 0 for record in step.records),
        **{
            f"rollout/{name}": sum(_session_counter(record, name) for record in graded)
            for name in SUMMED_COUNTERS
        },
        "rollout/groups": len({record.group for record in step.records}),
        "rollout/groups_dropped": len(step.groups.without_baseline),
        "rollout/groups_flat": len(step.groups.flat),
        "rollout/unbuilt": len(step.unbuilt),
        "fanout/segments_mean": mean([float(len(samples)) for samples in step.rollouts]),
        "fanout/dropped_long": step.dropped["long"],
        "fanout/dropped_many": step.dropped["many"],
        "fanout/cut_tokens": step.cut_tokens,
        "fanout/untrained_side": step.dropped["side"],
        "fanout/untrained_unfinished": step.dropped["unfinished"],
        "tokens/sampled": sampled,
        "tokens/trained": trained,
        "tokens/trained_share": trained / sampled if sampled else None,
        **{f"tokens/trained_{kind}": step.trained[kind] for kind in get_args(SegmentKind)},
        **_staleness(step),
        "tokens/per_s": sampled / max(rollout_s, 1e-9),
        "time/rollout_s": rollout_s,
    }


def _metrics_by_set(
    step: StepSamples, graded: Sequence[RolloutRecord], sets: Iterable[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in sets:
        solved = [float(bool(r.solved)) for r in graded if r.extra.get(TASK_SET) == name]
        groups = {r.group for r in step.records if r.extra.get(TASK_SET) == name}
        found |= {f"train/solve_rate/{name}": mean(solved), f"rollout/groups/{name}": len(groups)}
    return found


def _finding(record: RolloutRecord, name: str) -> object:
    """Return a part of a record's verdict; records of older versions do not have every part."""
    return (record.verdict or {}).get(name)


def _staleness(step: StepSamples) -> dict[str, float | None]:
    """Return the age of the weights that sampled the trained tokens, in updates before the newest
    among them.
    """
    parts = [
        sample.weight_versions[sample.loss_mask]
        for samples in step.rollouts
        for sample in samples
        if sample.weight_versions is not None
    ]
    versions = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    age = versions.max() - versions if len(versions) else versions
    return {
        "policy/staleness_mean": float(age.mean()) if len(age) else None,
        "policy/staleness_max": int(age.max()) if len(age) else None,
    }


def _session_counter(record: RolloutRecord, name: str) -> int:
    """Return a counter of the rollout's gateway session."""
    return int(record.extra.get("session", {}).get(name, 0))


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; None of nothing."""
    return sum(values) / len(values) if values else None
