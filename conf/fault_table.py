"""Declare boundaries and kinds of faults, and which kind is allowed at which boundary."""

from __future__ import annotations

from typing import Literal, get_args

Boundary = Literal[
    "session",
    "sandbox_boot",
    "exec",
    "tool",
    "turn",
    "subagent",
    "compaction",
    "finish",
    "patch",
    "grade",
    "teardown",
    "store",
    "deliver",
    "weights",
    "dump",
]
"""A call that a rollout or its run makes; ``docs/when_it_fails.md`` says which."""

FaultKind = Literal[
    "error",
    "exception",
    "cancelled",
    "timeout",
    "hostile",
    "hang",
    "delay",
    "death",
    "status",
    "cut",
    "abort",
    "garbage",
    "disconnect",
    "weight_update",
    "disk_full",
    "clock_jump",
]
"""A kind of fault; ``docs/when_it_fails.md`` describes each."""


def _kinds(*what: FaultKind) -> frozenset[FaultKind]:
    return frozenset(what)


_RAISED = _kinds("error", "exception", "cancelled", "timeout", "hostile")
_ANY = _RAISED | _kinds("hang", "delay")
_ENGINE = _ANY | _kinds("status", "cut", "abort", "garbage", "disconnect")
_WRITE = _RAISED | _kinds("delay", "disk_full")  # a hang that blocks cannot be cancelled

ALLOWED: dict[Boundary, frozenset[FaultKind]] = {
    "session": _ANY | _kinds("status", "cut", "clock_jump"),
    "sandbox_boot": _ANY | _kinds("status", "disk_full"),
    "exec": _ANY | _kinds("death", "garbage"),
    "tool": _ANY - _kinds("cancelled") | _kinds("garbage", "disk_full"),
    "turn": _ENGINE | _kinds("death", "weight_update", "clock_jump"),
    "subagent": _ENGINE,
    "compaction": _ENGINE,
    "finish": _ANY | _kinds("status", "cut", "garbage"),
    "patch": _ANY | _kinds("disk_full"),
    "grade": _ANY | _kinds("death", "garbage"),
    "teardown": _ANY,
    "store": _WRITE,
    "deliver": _WRITE,
    "weights": _ANY | _kinds("status", "cut"),
    "dump": _WRITE,
}
"""Kinds of faults that a plan may inject at each boundary."""

_TIMED: tuple[FaultKind, ...] = ("delay", "clock_jump", "death")


def validate_rule(
    where: Boundary, what: FaultKind, seconds: float | None, status: int | None
) -> str | None:
    """Return the error in a rule, with its fix; None if there is none."""
    if what not in ALLOWED[where]:
        known = ", ".join(name for name in get_args(FaultKind) if name in ALLOWED[where])
        return f"cannot be: {what} does not happen at {where}; there it is one of {known}"
    if seconds is None and what in ("delay", "clock_jump"):
        return f"lacks seconds: how long the {what} is"
    if seconds is not None and what not in _TIMED:
        return f"has seconds, which {what} does not take: drop it"
    if seconds is not None and seconds < 0 and what != "clock_jump":
        return f"has seconds={seconds:g}: only a clock_jump goes back in time"
    if (status is None) == (what == "status"):
        return "lacks status: 429 or 500 to 599" if status is None else f"{what} takes no status"
    if status is not None and status != 429 and not 500 <= status <= 599:
        return f"has status={status}: a fault is 429 or 500 to 599"
    return None
