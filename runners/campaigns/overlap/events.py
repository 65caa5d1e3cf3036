"""Events of the schedule log, and their rows ``(kind, body)``.

Invariant: the events of a run, in their order, determine which groups were trained together at
which weights; nothing else does, no clock and no chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from conf.errors import AgentrlError, ExitCode


class ScheduleError(AgentrlError):
    """An operation, or a row of the log, that is impossible in the state it was applied to."""

    exit_code = ExitCode.DATA_REFUSED


@dataclass(frozen=True, slots=True)
class Admit:
    """A group may be rolled out; groups are numbered 0, 1, … in the order of their admission."""

    group: int
    replaces: int | None = None
    """The group without signal that is left out for it."""


@dataclass(frozen=True, slots=True)
class Start:
    """The first rollout of a group began, at these weights."""

    group: int
    version: int


@dataclass(frozen=True, slots=True)
class Ready:
    """All rollouts of a group are final, and it may be trained."""

    group: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups that are trained together, oldest admission first."""

    number: int
    """1, 2, …: the step, which makes the weights of this version."""
    groups: tuple[int, ...]
    versions: tuple[int, ...]
    """Weights that each group began with."""

    @property
    def staleness(self) -> tuple[int, ...]:
        """Updates between each group's weights and those that are trained."""
        return tuple(self.number - 1 - version for version in self.versions)


@dataclass(frozen=True, slots=True)
class Switch:
    """The batch of this number is trained, and rollouts continue with its weights."""

    version: int


Event = Admit | Start | Ready | Batch | Switch
KINDS: dict[str, type[Event]] = {
    "admit": Admit,
    "start": Start,
    "ready": Ready,
    "batch": Batch,
    "switch": Switch,
}
"""Event of each kind of row."""

DEAL = "deal"
"""Row of the tasks of a step, ``{step, tasks}``, before its first group; it changes no state."""


def read_deals(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[int, list[str]]:
    """Return the tasks of each step that the rows of a log name, in the order of its groups."""
    return {body["step"]: list(body["tasks"]) for kind, body in rows if kind == DEAL}


def to_row(event: Event) -> tuple[str, dict[str, Any]]:
    """Return the kind and the JSON body of an event's row; the log may add keys of its own."""
    kinds = {event_type: kind for kind, event_type in KINDS.items()}
    return kinds[type(event)], asdict(event)


def from_row(kind: str, body: Mapping[str, Any]) -> Event | None:
    """Return the event of a row; None for a kind that changes no schedule, such as ``eval``.

    Raises ScheduleError for a body without the event's fields.
    """
    if kind not in KINDS:
        return None
    try:
        found = {field.name: body[field.name] for field in fields(KINDS[kind])}
    except KeyError as error:
        raise ScheduleError(f"the schedule log has a row {kind!r} without {error}") from error
    lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    return KINDS[kind](**found | lists)
