"""What a task is, and what a grader answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class UnittestIds:
    """The ids are ``module.Class.method`` of unittest; our runner runs them."""

    kind: Literal["unittest"] = "unittest"


@dataclass(frozen=True, slots=True)
class EvalScript:
    """A shell script puts the tests in place and runs them, as SWE-bench does it."""

    kind: Literal["pytest", "swebench"]
    """Who judges: our plugin in pytest, or the ``swebench`` package's reading of the log."""
    script: str
    workdir: str
    """The repository's path as the script knows it; it is put into the sandbox's instead."""
    row: str
    """What the ``swebench`` package needs besides, as a JSON object of its field names."""


@dataclass(frozen=True, slots=True)
class ProScripts:
    """SWE-bench-Pro: a script runs the selected test files, a parser reads what it printed."""

    run_script: str
    parser: str
    """Python source; run as ``parser STDOUT STDERR RESULT``."""
    selected: tuple[str, ...]
    workdir: str
    kind: Literal["swebench_pro"] = "swebench_pro"


@dataclass(frozen=True, slots=True)
class EvalCommand:
    """A shell command; exit code 0 is solved."""

    command: str
    workdir: str
    kind: Literal["eval_cmd"] = "eval_cmd"


@dataclass(frozen=True, slots=True)
class F2PScript:
    """A Python program from outside the repository; exit code 0 is solved."""

    script: str
    workdir: str
    kind: Literal["f2p_script"] = "f2p_script"


Grading = UnittestIds | EvalScript | ProScripts | EvalCommand | F2PScript
"""How a task's tests are run and read; ``graders/`` has one judge per ``kind``."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a repository comes from that is not there yet."""

    source: str
    """Directory, bundle or URL that git can fetch from."""
    base_commit: str
    setup: tuple[str, ...] = ()
    """Shell commands that belong to the base: what they change is no part of a patch."""
    workdir: str = "/testbed"
    """The repository's path as the commands know it."""
    image: str | None = None
    """What the commands are run in, where sandboxes have images."""


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
    """Test ids that fail at the base commit and must pass; what an id is says ``grading``."""
    pass_to_pass: tuple[str, ...]
    """Test ids that pass at the base commit and must still pass."""
    protected: tuple[str, ...]
    """Paths (relative, POSIX) that grading restores from the base commit."""
    gold_patch: str
    """The reference fix, as a git diff; never shown to the agent."""
    kind: str
    """The family's own label (kind of bug, repository), for breakdowns."""
    grading: Grading = UnittestIds()
    origin: Origin | None = None
    """Set while ``repo`` is still to be made (``workspaces.py``)."""
    image: str | None = None
    """What its sandboxes are made from, an image or a template; it has the programs that its tests
    need. None: what the configuration says. Sandboxes without images never see it (``Workspaces``).
    """
    workdir: str | None = None
    """Where the image has the repository."""


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
