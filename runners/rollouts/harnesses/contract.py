"""The contract of a harness: an agent program that works on a problem in a sandbox, then ends.

It reaches the policy through the gateway and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from runners.records.outcome import OutcomeCode
from runners.sandboxes.contract import CommandResult, Sandbox

TAIL = 2000
"""Bytes of a program's output that its result keeps."""


@dataclass(frozen=True, slots=True)
class HarnessContext:
    """Input of one run of the agent program."""

    prompt: str
    """The task's statement, as ``harness.prompt`` has it."""
    api_key: str
    """Key of the gateway session."""
    model: str
    """Model name that the program sends; the gateway answers to any."""
    deadline_s: float


@dataclass(frozen=True, slots=True)
class HarnessResult:
    """The agent program's own account of its end. The tokens are not here: the gateway has them."""

    code: OutcomeCode
    """policy.finished, policy.gave_up, budget.turns, budget.wall, infra.harness, infra.gateway …"""
    final_message: str
    """The agent's last message, in full."""
    raw_finish_reason: str | None
    """The program's own word for why it ended."""
    exit_code: int
    duration_s: float
    output: str
    """Tail of what the program printed, for diagnosis."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further statements that the rollout's record keeps: its version, its own counts. JSON."""

    @classmethod
    def of_command(cls, result: CommandResult, *, final_message: str = "") -> HarnessResult:
        """Return the result of a program that has no words of its own for its end: finished if its
        exit code is 0, out of time if the deadline ended it, else a failure of the program.
        """
        code = OutcomeCode.POLICY_FINISHED if result.exit_code == 0 else OutcomeCode.INFRA_HARNESS
        return cls(
            code=OutcomeCode.BUDGET_WALL if result.timed_out else code,
            final_message=final_message,
            raw_finish_reason=None,
            exit_code=result.exit_code,
            duration_s=result.duration_s,
            output=(result.stdout + result.stderr)[-TAIL:].decode(errors="replace"),
        )


class Harness(Protocol):
    """One agent program."""

    def mounts(self) -> dict[str, Path]:
        """Return the read-only files it needs, by their paths inside the sandbox."""
        ...

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run it to its end or deadline; raises only SandboxError (the sandbox is lost)."""
        ...
