"""The contracts of tasks: a problem, a patch and its limits, and the verdict of a grader.

The limits hold before the work that they bound begins, so an agent that leaves more costs nobody
but itself: its patch is refused, which is the agent's own outcome with reward 0.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runners.records.outcome import OutcomeCode

if TYPE_CHECKING:  # the process that captures patches needs no configuration
    from conf.sections.rollout import CaptureConfig

_HUNK = re.compile(rb"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")


@dataclass(frozen=True, slots=True)
class UnittestIds:
    """Ids are unittest's ``module.Class.method``; our runner in the sandbox runs them."""

    kind: Literal["unittest"] = "unittest"
    runs: tuple[str, ...] = ()
    """The tests that are run, in order, where they are not those that decide: the code under test
    can read the list, and a canary must have that of the real tests.
    """


ParserName = Literal[
    "pytest", "swebench", "log_parser", "status_map", "multi_swe", "eval_cmd", "f2p_script"
]


@dataclass(frozen=True, slots=True)
class ScriptGrading:
    """A shell script runs the tests, a parser reads their results: every published row."""

    kind: ParserName
    """The parser (``graders/parsers.py``)."""
    script: str
    """Of ``f2p_script`` a Python program from outside the repository."""
    workdir: str
    """The repository's path in the script; it is replaced by the sandbox's."""
    parser: str = ""
    """``log_parser``: Python source, run as ``parser STDOUT STDERR RESULT`` in the sandbox. Of
    others what they have to know besides, a JSON object: fields for the packages ``swebench`` and
    ``multi_swe_bench``, by their names there; the expected status by test for ``status_map``. An
    ``eval_cmd`` that has it is judged as ``pytest`` (a canary of a command that runs pytest).
    """
    missing_passes: bool = False
    """A pass-to-pass test that the log does not name is no failure."""


@dataclass(frozen=True, slots=True)
class HarborVerifier:
    """A Harbor task: its own ``tests/test.sh`` grades the end state of the agent's sandbox.

    ``Task.repo`` is the task's directory, and ``Task.base_commit`` its digest (``harbor/``).
    """

    kind: Literal["harbor"] = "harbor"


@dataclass(frozen=True, slots=True)
class CustomGrading:
    """A plug-in grades the patch in a fresh sandbox (``graders/custom.py``)."""

    plugin: str
    """Its ``PluginConfig`` as JSON."""
    row: str
    """The row's fields, as a JSON object."""
    kind: Literal["custom"] = "custom"


Grading = ScriptGrading | UnittestIds | HarborVerifier | CustomGrading
"""Way to run a task's tests and to read them; ``graders/`` has a judge for each."""


GradingKey = tuple[str, str, Grading, tuple[tuple[str, ...], ...], str, str | None]
"""Id, base commit, grading, test ids and protected paths, reference patch, image; hashable."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a repository that is still to be made."""

    source: str | None
    """Directory, bundle or URL from which git can fetch; None: what the image has at ``workdir``,
    as one commit without history.
    """
    base_commit: str
    """"" if the repository is only in the image."""
    setup: tuple[str, ...] = ()
    """Shell commands that belong to the base: their changes are no part of a patch."""
    workdir: str = "/testbed"
    """The repository's path in the commands."""
    image: str | None = None
    """Image to run the commands in, where sandboxes have images."""
    test_setup: tuple[str, ...] = ()
    """Shell commands that put the hidden tests in place, run after ``setup``: what they change is
    no part of the base, and is put over a patch before it is graded.
    """


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
    """Test ids that fail at the base commit and must pass; ``grading`` fixes the form of an id."""
    pass_to_pass: tuple[str, ...]
    """Test ids that pass at the base commit and must still pass."""
    protected: tuple[str, ...]
    """Paths (relative, POSIX) that grading restores from the base commit."""
    gold_patch: str
    """The reference fix, as a git diff; never shown to the agent."""
    kind: str
    """Label of the dataset (kind of bug, repository), by which reports group."""
    grading: Grading = UnittestIds()
    origin: Origin | None = None
    """Set while ``repo`` is still to be made (``task_repositories.py``)."""
    image: str | None = None
    """Image or template of its sandboxes, with the programs that its tests need. None: that of the
    configuration. ``TaskRepositories`` removes it where sandboxes have no images.
    """
    workdir: str | None = None
    """Path of the repository in the image."""
    hidden_tests: Path | None = None
    """Directory of the files that ``Origin.test_setup`` made, by their paths in the repository; it
    has a file ``deleted`` beside it with the paths that are to be removed. Never shown to agents.
    """
    hidden_paths: tuple[str, ...] = ()
    """Absolute paths of the image that are removed before an agent starts."""
    asks_for_tests: bool = False
    """The agent is to write tests; hidden ones decide."""
    schema: str = ""
    """Schema of its row (``task.format``), ``harbor``, or "" if it is generated."""
    set_name: str = ""
    """Name of its set in a mixture (``task=mixture``), else ""."""

    @property
    def grading_key(self) -> GradingKey:
        """All that decides the verdict on a patch.

        Rows of one dataset may share id and commit and still be graded differently.
        """
        tests = (self.fail_to_pass, self.pass_to_pass, self.protected)
        return (self.id, self.base_commit, self.grading, tests, self.gold_patch, self.image)


@dataclass(frozen=True, slots=True)
class Patch:
    """Changes of the agent against the base commit."""

    diff: bytes
    """``git diff --binary`` against the base, without protected paths. Commits, index and untracked
    files all count.
    """
    sha256: str
    files: tuple[str, ...]
    protected_touched: tuple[str, ...]
    """Protected paths that the agent changed; grading restores them, the record reports them. Often
    innocent: an agent may well edit the tests that it runs.
    """
    refused: str = ""
    """Reason why the change is not graded (too large), else ""; such a patch has an empty ``diff``
    and the verdict unsolved.
    """
    refused_as: str = ""
    """Outcome of an attempt whose patch is refused (a value of ``OutcomeCode``), else ""."""

    @property
    def changed_lines(self) -> int:
        """Lines that the diff adds and removes; binary files have none.

        Counted within hunks, by the lengths that their headers state: a line of the policy's own
        may begin with ``++`` or ``--``, and then looks like a header of a file.
        """
        changed = old = new = 0  # the last two: lines that are left of the hunk
        for line in self.diff.split(b"\n"):
            sign = line[:1]
            if old > 0 or new > 0:
                if sign != b"\\":  # "\\ No newline at end of file" is no line of either side
                    changed += sign in (b"+", b"-")
                    old -= sign != b"+"
                    new -= sign != b"-"
            elif hunk := _HUNK.match(line):
                old, new = (1 if size is None else int(size) for size in hunk.groups())
        return changed


class VerdictKind(StrEnum):
    """Finding of a grader; ``infra`` means no grade, which is not ``unsolved``."""

    SOLVED = "solved"
    UNSOLVED = "unsolved"
    INFRA = "infra"


TestSet = Literal["fail_to_pass", "pass_to_pass"]
SETS: tuple[TestSet, TestSet] = ("fail_to_pass", "pass_to_pass")
TestResult = Literal["passed", "failed", "missing", "void"]
"""``missing``: no result of this test was reported. ``void``: it was reported as passed, by a run
that proves nothing: its end is not proven, or canaries contradict it.
"""


@dataclass(frozen=True, slots=True)
class DecidingTest:
    """Result of one test that decides about a task."""

    name: str
    test_set: TestSet
    result: TestResult

    @property
    def reported_passed(self) -> bool:
        """True if it was reported as passed, by a run that proves it or not."""
        return self.result in ("passed", "void")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer of a grader."""

    kind: VerdictKind
    fail_to_pass_passed: int
    fail_to_pass_total: int
    pass_to_pass_passed: int
    pass_to_pass_total: int
    reason: str
    """One line: "all tests pass", "1 of 3 fail-to-pass tests fail (tests.test_sum.Sum.test_zero)",
    "patch does not apply: …", …
    """
    log: str
    """Tail of the test output."""
    duration_s: float
    timed_out: bool = False
    tests: tuple[DecidingTest, ...] = ()
    """Every test of the task, in its order; empty where only an exit code decides, and where no
    tests were run.
    """
    tampered: str = ""
    """Evidence that the patch made the tests pass without doing what they ask, in one line; else
    "". Such a verdict is unsolved, and the outcome of its rollout is ``policy.tampered``.
    """
    rewards: tuple[tuple[str, float], ...] = ()
    """Rewards by name that the task's own verifier gave (``HarborVerifier``), below 0 and above 1
    too. ``reward`` decides: solved from 1.
    """
    official: bool | None = None
    """Verdict of the ``swebench`` package alone, where it was asked; nothing of ours changes it."""
    unverified: str = ""
    """Reason why no canary checked a solved verdict (``canaries/``), else ""."""
    signs: tuple[str, ...] = ()
    """Static signs of tampering in the patch, for review; they decide nothing."""

    @property
    def fail_to_pass_share(self) -> float | None:
        """Share of the fail-to-pass tests that pass, in [0, 1]; None for a task without any."""
        return _share(self.fail_to_pass_passed, self.fail_to_pass_total)

    @property
    def pass_to_pass_share(self) -> float | None:
        """Share of the pass-to-pass tests that pass, in [0, 1]; None for a task without any."""
        return _share(self.pass_to_pass_passed, self.pass_to_pass_total)

    @property
    def part(self) -> float:
        """Part of the task that is solved, in [0, 1), for partial credit: the share of fail-to-pass
        tests (``solved_in_part``), or the verifier's own reward.
        """
        if self.rewards:
            in_time = self.kind is VerdictKind.UNSOLVED and not self.timed_out and not self.tampered
            return min(max(dict(self.rewards)["reward"], 0.0), 1.0) if in_time else 0.0
        return (self.fail_to_pass_share or 0.0) if self.solved_in_part else 0.0

    @property
    def solved_in_part(self) -> bool:
        """True if some fail-to-pass tests pass, and nothing stands against them: the task is not
        solved, every pass-to-pass test passes, the tests ended in time, nothing is tampered with.
        """
        return (
            self.kind is VerdictKind.UNSOLVED
            and 0 < self.fail_to_pass_passed < self.fail_to_pass_total
            and self.pass_to_pass_passed == self.pass_to_pass_total
            and not self.timed_out
            and not self.tampered
        )


def _share(passed: int, total: int) -> float | None:
    return passed / total if total else None


def void_passed_tests(verdict: Verdict) -> Verdict:
    """Return a verdict in which no test has passed: those that had are void."""
    return replace(
        verdict,
        tests=tuple(
            replace(test, result="void") if test.result == "passed" else test
            for test in verdict.tests
        ),
        fail_to_pass_passed=0,
        pass_to_pass_passed=0,
    )


MB = 1 << 20


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """Sizes beyond which a change is refused; see ``conf/sections/rollout.py``."""

    patch_bytes: int = MB
    patch_files: int = 1000
    workspace_bytes: int = 2048 * MB
    """On the disk: a sparse file counts with what it takes there."""
    workspace_files: int = 50_000
    """Files and directories beyond the repository's own."""

    @classmethod
    def of(cls, config: CaptureConfig) -> CaptureLimits:
        """Return the limits that a configuration names."""
        return cls(
            patch_bytes=int(config.patch_mb * MB),
            workspace_bytes=config.workspace_mb * MB,
            workspace_files=config.workspace_files,
        )


DEFAULT_LIMITS = CaptureLimits()
FILE_LIMIT = 8 * MB
"""Bytes; a larger changed file is refused before git reads it."""
CHANGED_LIMIT = 64 * MB
"""Bytes of all changed files together, which git reads and copies."""
DEPTH_LIMIT = 200
"""Levels of directories. Git's own walk recurses, and npm's deepest packages have some forty."""
PATH_LIMIT = 3000
"""Bytes of a path below the workspace. Linux takes 4096, and the workspace has a path too."""


class RefusedError(Exception):
    """A change is not graded, through the agent's fault."""

    def __init__(self, code: OutcomeCode, reason: str) -> None:
        self.code = code
        super().__init__(reason)


def workspace_error(reason: str) -> RefusedError:
    """Return the refusal of a workspace that is too large to be read."""
    return RefusedError(OutcomeCode.POLICY_OVERSIZED_WORKSPACE, reason)


def patch_error(reason: str) -> RefusedError:
    """Return the refusal of a change that is too large to be graded."""
    return RefusedError(OutcomeCode.POLICY_OVERSIZED_PATCH, reason)


def unreadable_error(reason: str) -> RefusedError:
    """Return the refusal of a workspace that cannot be read, for the sake of what is in it."""
    return RefusedError(OutcomeCode.POLICY_UNREADABLE_WORKSPACE, reason)


def make_refused_patch(
    reason: str,
    touched: tuple[str, ...] = (),
    *,
    code: OutcomeCode = OutcomeCode.POLICY_OVERSIZED_PATCH,
) -> Patch:
    """Return the empty patch of a change that is not graded; ``code``: its attempt's outcome."""
    empty = hashlib.sha256(b"").hexdigest()
    return Patch(
        diff=b"",
        sha256=empty,
        files=(),
        protected_touched=touched,
        refused=reason,
        refused_as=code.value,
    )
