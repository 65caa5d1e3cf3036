"""Illnesses of the policy and its updates: entropy, mismatch of engine and trainer, staleness."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from runners.observe.adviser.alarm import Alarm
from runners.observe.adviser.history import (
    History,
    StepFacts,
    first_known,
    known,
    mean_of,
    name_steps,
    total,
)

_STEPS = 2
_FIRST = 3
"""Steps by whose median the run began."""
_NO_ENTROPY = 5e-4
"""Nats per token: of 2,000 tokens one is open. Policies that solve most tasks have ten times it."""
_SHRUNK, _GROWN = 0.1, 3.0
"""Factors of the entropy with which the run began."""
_ABLE = 0.1
"""Solve rate that a policy must have had to lose it."""
_SOLVED = 0.9
"""Solve rate from which a policy may be sure of itself."""
_K3, _K3_GROWN, _K3_LEAST = 1e-2, 100.0, 1e-3
"""Nats; factor of the first steps, and the least value for that. Engines in bfloat16 have 1e-3."""
_K3_OTHER = 0.5
"""Nats: no rounding does that, nor other experts. A policy sampled without its output layer had 8
(SGLang, H100)."""
_ESS = 0.3


def find_entropy_collapse(history: History) -> Alarm | None:
    """Find a policy that samples nothing new though tasks are left to solve."""
    last = history.last(_STEPS)
    values, first = (
        known(last, "policy/entropy"),
        first_known(history.steps, "policy/entropy", _FIRST),
    )
    rate = mean_of(last, "train/solve_rate")
    if len(values) < _STEPS or rate is None or rate >= _SOLVED:
        return None
    began, highest = median(first), max(values)
    shrunk = highest < _SHRUNK * began and rate < 0.5
    if highest >= _NO_ENTROPY and not shrunk:
        return None
    return Alarm(
        "entropy_collapse",
        f"entropy at most {highest:.1e} nats per token in {name_steps(last)}, {began:.1e} at "
        f"first; solve rate {rate:.0%}",
        "raise sampling.temperature, trainer.entropy_bonus or trainer.clip_high, lower "
        "trainer.learning_rate",
    )


def find_policy_collapse(history: History) -> Alarm | None:
    """Find a policy that forgets: its answers become random and its tasks unsolved."""
    last = history.last(_STEPS)
    values, first = (
        known(last, "policy/entropy"),
        first_known(history.steps, "policy/entropy", _FIRST),
    )
    rate = mean_of(last, "train/solve_rate")
    if not values or len(first) < _FIRST or rate is None:
        return None
    if min(values) < _GROWN * median(first):
        return None
    best, at = _best_rate(history.steps[:-_STEPS])  # of all steps: only for the few that grow
    if best is None or best < _ABLE or rate > best / 2:
        return None
    return Alarm(
        "policy_collapse",
        f"entropy {min(values):.2g} nats per token in {name_steps(last)}, {median(first):.2g} at "
        f"first; solve rate {rate:.0%}, {best:.0%} in {at}",
        "go back (model.path=RUN) with a lower trainer.learning_rate, "
        "trainer.kl.weight above 0, or trainer.decay=cosine",
    )


def _best_rate(steps: Sequence[StepFacts]) -> tuple[float | None, str]:
    """Return the best mean solve rate of so many steps in a row, and which; None of too few."""
    found = [
        (rate, name_steps(part))
        for end in range(_FIRST, len(steps) + 1)
        if (rate := mean_of(part := steps[end - _FIRST : end], "train/solve_rate")) is not None
    ]
    return max(found, default=(None, ""), key=lambda each: each[0])


def find_k3_drift(history: History) -> Alarm | None:
    """Find an engine that samples from another distribution than the one that is trained."""
    last = history.last(_STEPS)
    values, first = known(last, "policy/k3"), first_known(history.steps, "policy/k3", _FIRST)
    if len(values) < _STEPS:
        return None
    began, least = median(first), min(values)
    if least < _K3 and not (least >= _K3_LEAST and least > _K3_GROWN * began):
        return None
    ess = mean_of(last, "policy/ess")
    also = "" if ess is None else f", effective sample size {ess:.0%}"
    fix = (
        "bound it by trainer.correction.truncate=token; look for its cause: other numbers in "
        "engine and trainer (trainer.precision), experts (routing_replay=rollout), an engine "
        "whose weights were not loaded (agentrl check)"
    )
    if min(began, least) >= _K3_OTHER:
        fix = (
            "stop the run: the engine samples from another policy than the one that is trained; "
            "compare what it loaded with model.path (its log, agentrl check)"
        )
    return Alarm(
        "k3_drift",
        f"k3 at least {least:.1e} nats per token in {name_steps(last)}, {began:.1e} at first{also}",
        fix,
    )


def find_staleness(history: History) -> Alarm | None:
    """Find rollouts that are trained long after the weights that sampled them."""
    last = history.last(_STEPS)
    ages, ess = known(last, "policy/staleness_max"), known(last, "policy/ess")
    mode = history.key("run.overlap", "none")
    limit = {"none": 0, "step": 1}.get(mode, history.key("run.staleness", 4))
    if len(ages) < _STEPS or not min(ages):
        return None
    beyond = min(ages) > limit
    if not beyond and not (len(ess) == _STEPS and max(ess) < _ESS):
        return None
    worth = f", effective sample size at most {max(ess):.0%}" if ess else ""
    return Alarm(
        "staleness",
        f"tokens up to {max(ages):.0f} updates old in {name_steps(last)}, expected are {limit} "
        f"with run.overlap={mode}{worth}",
        "lower run.staleness and run.window, or set run.overlap=step; bound old tokens by "
        "trainer.correction.truncate=token",
    )


def find_failed_updates(history: History) -> Alarm | None:
    """Find updates that are left out because the loss of a plug-in fails."""
    last = history.last(_STEPS)
    failed, made = total(last, "train/updates_failed"), total(last, "train/updates")
    if not failed:
        return None
    return Alarm(
        "failed_updates",
        f"{failed:,} of {failed + made:,} updates were left out in {name_steps(last)}",
        "the events update_failed in agentrl report have the error of trainer.loss",
    )


def find_refused_routing(history: History) -> Alarm | None:
    """Find captured experts of other tokens: their samples are not trained."""
    last = history.last(1)
    if not (refused := total(last, "r3/refused_samples")):
        return None
    return Alarm(
        "refused_routing",
        f"{refused:,} samples with impossible routing in {name_steps(last)}",
        "agentrl report names layer and sample; the engine returns other experts than it used "
        "(docs/routing_replay.md): update it, or routing_replay=recompute",
    )
