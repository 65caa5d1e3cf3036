"""The metrics of a step's rollouts, before anything is trained on them.

Invariant: the keys are the same in every step, but for names that rollouts bring; a figure of
nothing is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import numpy as np

from runners.campaigns.named_means import means_by_name
from runners.records.outcome import OutcomeCode
from runners.records.record import (
    TASK_SET,
    UNKNOWN_VERSION,
    RolloutRecord,
    SegmentKind,
)
from runners.records.session_summary import SUMMED_COUNTERS, mean
from runners.training.advantages import key_of
from runners.training.step_samples import StepSamples


def step_metrics(
    step: StepSamples,
    rollout_s: float,
    sets: Iterable[str] = (),
    *,
    version: int | None = None,
) -> dict[str, Any]:
    """Return the metrics of a step's rollouts, which ``docs/metrics.md`` defines.

    ``rollout_s``: seconds that the step's rollouts took. ``sets``: names of a mixture's sets, each
    of which has metrics of its own. ``version``: of the weights that are trained; None: the newest
    among those that sampled the trained tokens.
    """
    graded = [record for record in step.records if record.reward is not None]
    rewards = [record.reward for record in graded if record.reward is not None]
    sampled = sum(record.sampled_tokens for record in graded)
    trained = step.trained.total()
    idle = [record for record in graded if key_of(record) in step.groups.without_signal]
    return {
        "train/reward_mean": mean(rewards),
        "train/solve_rate": mean([float(bool(record.solved)) for record in graded]),
        **_metrics_by_set(step, graded, sets),
        "train/solved_in_part": mean([float(bool(_finding(r, "solved_in_part"))) for r in graded]),
        **_spread("rollout/turns", [record.turns for record in graded]),
        **_spread("rollout/tool_turns", [record.tool_turns or 0 for record in graded]),
        **_spread("rollout/tool_calls", [record.tool_calls or 0 for record in graded]),
        **means_by_name("reward", [record.reward_parts for record in graded], summands=True),
        **means_by_name("verifier", [_finding(record, "rewards") or {} for record in graded]),
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
        **_echo_metrics(graded),
        "rollout/groups": len({key_of(record) for record in step.records}),
        "rollout/groups_dropped": len(step.groups.without_baseline),
        "rollout/groups_flat": len(step.groups.flat),
        "rollout/without_signal": len(idle),
        "rollout/unbuilt": len(step.unbuilt),
        **_spread("fanout/segments", [len(samples) for samples in step.rollouts]),
        "fanout/dropped_long": step.dropped["long"],
        "fanout/dropped_many": step.dropped["many"],
        "fanout/cut_tokens": step.cut_tokens,
        "fanout/untrained_side": step.dropped["side"],
        "fanout/untrained_unfinished": step.dropped["unfinished"],
        "tokens/sampled": sampled,
        "tokens/in_loss": step.in_loss,
        "tokens/in_loss_share": step.in_loss / sampled if sampled else None,
        "tokens/without_signal": sum(record.sampled_tokens for record in idle),
        "tokens/trained": trained,
        "tokens/trained_share": trained / sampled if sampled else None,
        **{f"tokens/trained_{kind}": step.trained[kind] for kind in get_args(SegmentKind)},
        **_staleness(step, version),
        "tokens/per_s": sampled / max(rollout_s, 1e-9),
        "time/rollout_s": rollout_s,
    }


def _echo_metrics(graded: Iterable[RolloutRecord]) -> dict[str, int]:
    """Return how many answers came back in another form, by what the program did to it."""
    found = Counter[str]()
    for record in graded:
        found.update(record.extra.get("session", {}).get("mechanical", {}))
    named = {f"echo/mechanical/{name}": count for name, count in sorted(found.items())}
    return {"echo/mechanical": found.total(), **named}


def _metrics_by_set(
    step: StepSamples, graded: Sequence[RolloutRecord], sets: Iterable[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in sets:
        solved = [float(bool(r.solved)) for r in graded if r.extra.get(TASK_SET) == name]
        groups = {key_of(r) for r in step.records if r.extra.get(TASK_SET) == name}
        found |= {f"train/solve_rate/{name}": mean(solved), f"rollout/groups/{name}": len(groups)}
    return found


def _finding(record: RolloutRecord, name: str) -> Any:
    """Return a part of a record's verdict; records of older versions do not have every part."""
    return (record.verdict or {}).get(name)


def _staleness(step: StepSamples, version: int | None) -> dict[str, float | None]:
    """Return the age of the weights that sampled the tokens of the loss, in updates before
    ``version``; tokens of unknown weights are left out.
    """
    parts = [
        sample.weight_versions[sample.loss_mask]
        for samples in step.rollouts
        for sample in samples
        if sample.weight_versions is not None
    ]
    versions = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    known = versions[versions != UNKNOWN_VERSION]
    if not len(known):
        return {"policy/staleness_mean": None, "policy/staleness_max": None}
    age = (known.max() if version is None else version) - known
    return {"policy/staleness_mean": float(age.mean()), "policy/staleness_max": int(age.max())}


def _spread(name: str, values: Sequence[int]) -> dict[str, float | None]:
    """Return least, mean and greatest of a rollout's counts."""
    return {
        f"{name}_min": min(values, default=None),
        f"{name}_mean": mean(values),
        f"{name}_max": max(values, default=None),
    }


def _session_counter(record: RolloutRecord, name: str) -> int:
    """Return a counter of the rollout's gateway session."""
    return int(record.extra.get("session", {}).get(name, 0))
