"""What a task is, and what a grader answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: a repository at a commit, a problem statement, and the tests that decide."""

    id: str
    split: Literal["train", "held_out"]
    repo: Path
    """Pristine git repository (work tree at ``base_commit``, ``.git`` inside); never written."""
    base_commit: str
    problem_statement: str
    fail_to_pass: tuple[str, ...]
    """Test ids (``module.Class.method`` of unittest) that fail at the base commit and must pass."""
    pass_to_pass: tuple[str, ...]
    """Test ids that pass at the base commit and must still pass."""
    protected: tuple[str, ...]
    """Paths (relative, POSIX) that grading restores from the base commit."""
    gold_patch: str
    """The reference fix, as a git diff; never shown to the agent."""
    kind: str
    """The family's own label (kind of bug), for breakdowns."""


@dataclass(frozen=True, slots=True)
class Patch:
    """What the agent changed, against the base commit."""

    diff: bytes
    """``git diff --binary`` against the base: commits, index and untracked files alike; protected
    paths left out.
    """
    sha256: str
    files: tuple[str, ...]
    tampered: tuple[str, ...]
    """Protected paths the agent touched (restored for grading, reported)."""
    refused: str = ""
    """Why the change is not graded (too large); ``diff`` is empty then, and the verdict unsolved.
    """


class VerdictKind(StrEnum):
    """What grading found; ``infra`` is not ``unsolved``."""

    SOLVED = "solved"
    UNSOLVED = "unsolved"
    INFRA = "infra"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The grader's answer."""

    kind: VerdictKind
    fail_to_pass_passed: int
    fail_to_pass_total: int
    pass_to_pass_passed: int
    pass_to_pass_total: int
    reason: str
    """One line: "all tests pass", "2 of 3 fail-to-pass tests fail", "patch does not apply", …"""
    log: str
    """Tail of the test output."""
    duration_s: float
    timed_out: bool = False


class Grader(Protocol):
    """Turns a patch into a verdict, in a second, clean sandbox without network."""

    async def grade(self, task: Task, patch: Patch, *, name: str, deadline_s: float) -> Verdict:
        """Grade; never raises for what the patch does. An infrastructure failure is a verdict of
        kind infra.
        """
        ...
