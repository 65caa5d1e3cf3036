"""Which faults a plan may inject where: the closed lists and the one table."""

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
"""A boundary that a rollout or its run crosses; ``runners/faults/README.md`` says which call."""

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
"""What happens there; ``runners/faults/README.md`` says how."""


def _set(*what: FaultKind) -> frozenset[FaultKind]:
    return frozenset(what)


_RAISED = _set("error", "exception", "cancelled", "timeout", "hostile")
_ANY = _RAISED | _set("hang", "delay")
_ENGINE = _ANY | _set("status", "cut", "abort", "garbage", "disconnect")
_WRITE = _RAISED | _set("delay", "disk_full")  # it blocks: a hang there could not be cancelled

ALLOWED: dict[Boundary, frozenset[FaultKind]] = {
    "session": _ANY | _set("status", "cut", "clock_jump"),
    "sandbox_boot": _ANY | _set("status", "disk_full"),
    "exec": _ANY | _set("death", "garbage"),
    "tool": _ANY - _set("cancelled") | _set("garbage", "disk_full"),
    "turn": _ENGINE | _set("death", "weight_update", "clock_jump"),
    "subagent": _ENGINE,
    "compaction": _ENGINE,
    "finish": _ANY | _set("status", "cut", "garbage"),
    "patch": _ANY | _set("disk_full"),
    "grade": _ANY | _set("death", "garbage"),
    "teardown": _ANY,
    "store": _WRITE,
    "deliver": _WRITE,
    "weights": _ANY | _set("status", "cut"),
    "dump": _WRITE,
}
"""The one table: what can happen where."""

_TIMED: tuple[FaultKind, ...] = ("delay", "clock_jump", "death")


def validate_rule(
    where: Boundary, what: FaultKind, seconds: float | None, status: int | None
) -> str | None:
    """Return what is wrong with a rule, and the mend; None if nothing is."""
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
