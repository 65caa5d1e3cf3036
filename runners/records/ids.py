"""The names of rollouts and of their attempts: formatted and parsed here only.

``train-000012-003-05-a1`` is the second attempt (``a1``) of member 5 of group 3 in training step
12. The numbers are padded so that names sort as rollouts are ordered.
"""

from __future__ import annotations

import re

_ATTEMPT = re.compile(r"(?P<rollout>.+)-a(?P<attempt>\d+)", re.ASCII)
_ROLLOUT = re.compile(r"(train|eval)-(\d+)-(\d+)-(\d+)", re.ASCII)


def rollout_id(split: str, step: int, group: int, member: int) -> str:
    """Return the name of a rollout: ``("eval", 0, 3, 1)`` gives ``eval-000000-003-01``."""
    return f"{split}-{step:06d}-{group:03d}-{member:02d}"


def session_id(rollout_id: str, attempt: int) -> str:
    """Return the name of an attempt: of its gateway session and of its sandbox."""
    return f"{rollout_id}-a{attempt}"


def parse_session_id(name: str) -> tuple[str, int] | None:
    """Return rollout and attempt of a session's name; None if it has another form."""
    found = _ATTEMPT.fullmatch(name)
    return (found["rollout"], int(found["attempt"])) if found else None


def write_owner(column: str) -> str:
    """Return the SQL expression of the rollout of a session's name in ``column``, where
    ``parse_session_id`` knows one.
    """
    return f"substr({column}, 1, length(rtrim({column}, '0123456789')) - length('-a'))"


def parse_rollout_id(name: str) -> tuple[str, int, int, int] | None:
    """Return split, step, group and member of a rollout's name; None if it has another form, as
    those of a gateway that serves alone have.
    """
    found = _ROLLOUT.fullmatch(name)
    return (found[1], int(found[2]), int(found[3]), int(found[4])) if found else None
