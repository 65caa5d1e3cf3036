"""The contract between a rollout and those who judge it: graders and rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.session_summary import SessionSummary
from runners.sandboxes.contract import Sandbox
from runners.tasks.contract import Patch, Task, Verdict


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """The end of a rollout's attempt, as graders and rewards receive it.

    A grader receives it with ``verdict`` None and answers with the verdict; a reward receives it
    with that verdict and with the final outcome. Both see the same however the rollout ran: here,
    on a Ray worker, or long ago (``agentrl regrade`` rebuilds it from the store). A patch that no
    agent made, as in a calibration, has an empty ``summary``.

    What the policy wrote is data to be judged, never to be trusted. All texts in ``outcome``,
    ``summary`` and ``verdict`` are valid UTF-8 without control characters (U+FFFD stands in their
    place; line ends and tabs stay), and bounded: a message of an outcome has at most 512
    characters, a final message 262,144, the arguments of a call 8,192, of the last 256 calls, and a
    verdict's log 4,000. Braces and per cent signs stay: format *with* such a text, never *by* it.
    Only ``patch.diff`` is as the agent left it, in bytes, within ``rollout.capture``.
    """

    outcome: Outcome
    """Its end: a closed code, the agent program's last words (they may be forged by commands
    of the policy), and its own reason as ``raw_finish_reason``.
    """
    summary: SessionSummary
    """The session as it was on the wire: final message, tool calls, turns, usage, finish reason."""
    patch: Patch
    """The change of the work tree."""
    verdict: Verdict | None = None
    """Result of the tests: each deciding test by name, and the shares that pass. None: not graded
    yet.
    """

    @classmethod
    def of_patch(cls, patch: Patch) -> RolloutResult:
        """Return the result of a patch that no agent made."""
        return cls(Outcome(OutcomeCode.POLICY_FINISHED, Stage.END), SessionSummary(), patch)


class Grader(Protocol):
    """Turns the result of a rollout into a verdict."""

    async def grade(
        self, task: Task, result: RolloutResult, *, name: str, deadline_s: float
    ) -> Verdict:
        """Grade; never raises for anything the policy did. An infrastructure failure is a verdict
        of kind infra. ``name`` is unique and names sandboxes, ``deadline_s`` is of one run of the
        tests.
        """
        ...

    async def grade_end_state(
        self, task: Task, sandbox: Sandbox, *, name: str, deadline_s: float
    ) -> Verdict:
        """Grade what an agent left in its sandbox (``HarborVerifier``), which is closed after it;
        else as ``grade``.
        """
        ...

    async def grade_reference(
        self, task: Task, *, solve: bool, name: str, deadline_s: float
    ) -> Verdict:
        """Grade the task's reference solution or, unless ``solve``, the untouched environment."""
        ...
