"""Starvation, of the training and of the rollouts, and a disk that fills."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from runners.observe.adviser.alarm import Alarm
from runners.observe.adviser.history import History, known, name_steps

_STEPS = 3
_SLOWER = 3.0
"""Factor of the run's own pace: a machine that is shared varies by less."""
_IDLE, _IDLE_OVERLAPPED = 0.8, 0.9
"""Share of a step in which nothing is sampled because training goes on."""
_WAITS = 0.01
"""Share of a step in which something is trained, with ``run.overlap``. A laptop has 6 %."""
_LOW_MB = 1024.0
_LEFT = 10
"""Steps for which the disk has to suffice."""


def find_starved_training(history: History) -> Alarm | None:
    """Find training that waits for rollouts, far longer than before or than it takes itself."""
    last = history.last(_STEPS)
    speeds, before = known(last, "tokens/per_s"), known(history.steps[:-_STEPS], "tokens/per_s")
    fix = (
        "the rollouts are slow: look at their stages in agentrl report; raise rollout.concurrency, "
        "run.overlap=stream, more engines (gateway.replicas where the gateway is busy)"
    )
    if len(speeds) == _STEPS <= len(before) and max(speeds) < median(before) / _SLOWER:
        return Alarm(
            "starved_training",
            f"at most {max(speeds):,.0f} sampled tokens per second in {name_steps(last)}, "
            f"{median(before):,.0f} before",
            fix,
        )
    shares = _training_shares(history)
    if history.key("run.overlap", "none") != "none" and shares and max(shares) < _WAITS:
        return Alarm(
            "starved_training",
            f"training takes at most {max(shares):.1%} of a step in {name_steps(last)} and waits "
            "for the rest",
            fix,
        )
    return None


def find_starved_rollouts(history: History) -> Alarm | None:
    """Find rollouts that wait for training."""
    last, shares = history.last(_STEPS), _training_shares(history)
    overlaps = history.key("run.overlap", "none") != "none"
    if not shares or min(shares) < (_IDLE_OVERLAPPED if overlaps else _IDLE):
        return None
    more = "" if overlaps else ", run.overlap=step"
    return Alarm(
        "starved_rollouts",
        f"training takes at least {min(shares):.0%} of a step in {name_steps(last)}, and rollouts "
        "wait",
        f"more trainer.devices, a larger trainer.tokens_per_microbatch, trainer.recompute=false, "
        f"trainer.threads{more}",
    )


def _training_shares(history: History) -> list[float]:
    """Return training's share of each of the last steps; nothing if one is not known."""
    last = history.last(_STEPS)
    trained, steps = known(last, "time/train_s"), known(last, "time/step_s")
    if len(trained) < _STEPS or len(steps) < _STEPS or not min(steps):
        return []
    return [one / whole for one, whole in zip(trained, steps, strict=True)]


def find_full_disk(history: History) -> Alarm | None:
    """Find a disk that is full soon."""
    free = known(history.steps[-_STEPS - 2 :], "disk/free_mb")
    if not free:
        return None
    step, fix = history.steps[-1].step, "free it, lower run.keep_checkpoints, "
    if history.key("routing_replay.kind", "off") == "rollout":
        fix += "set routing_replay.keep_steps lower (null keeps the routing of all steps), "
    fix += "or continue the run from a copy of its directory on a larger one (run.dir)"
    falls = [earlier - later for earlier, later in pairwise(free)]
    seen = f"{free[-1]:,.0f} MB are free in the run's directory after step {step}"
    if free[-1] < _LOW_MB:
        return Alarm("full_disk", seen, fix)
    left = min(_LEFT, int(history.key("run.steps", 0)) - step)
    fall = median(falls) if len(falls) >= _STEPS else 0.0
    if fall > 0 and free[-1] / fall < left:
        return Alarm("full_disk", f"{seen}, {fall:,.0f} MB less with each step", fix)
    return None
