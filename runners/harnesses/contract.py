"""What every harness (agent program) promises: to work on a problem in a sandbox, then end.

It reaches the policy through the gateway and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from runners.sandboxes.contract import Sandbox
from runners.trajectory.outcome import OutcomeCode


@dataclass(frozen=True, slots=True)
class HarnessContext:
    """What the agent program is told."""

    problem_statement: str
    api_key: str
    """The gateway session's key."""
    model: str
    """Model name it sends; the gateway answers to any."""
    deadline_s: float


@dataclass(frozen=True, slots=True)
class HarnessResult:
    """What the agent program said of itself; token truth is in the gateway."""

    code: OutcomeCode
    """policy.finished, policy.gave_up, budget.turns, budget.wall, infra.harness, infra.gateway …"""
    final_message: str
    """The agent's last words, in full."""
    raw_finish_reason: str | None
    exit_code: int
    duration_s: float
    output: str
    """Tail of what the program printed, for diagnosis."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What else it said that the record should keep: its version, its own counts. JSON."""


class Harness(Protocol):
    """One agent program."""

    def mounts(self) -> dict[str, Path]:
        """Read-only files it needs inside the sandbox."""
        ...

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run it to its end or deadline; raises only SandboxError (the sandbox is lost)."""
        ...
