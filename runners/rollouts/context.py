"""The context that every attempt works with, and the result it hands back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from conf.sections.rollout import DeadlinesConfig
from runners.gateway.client import GatewayAdmin
from runners.records.record import RolloutRecord
from runners.rollouts.harnesses.contract import Harness
from runners.rollouts.reward import ComputeReward
from runners.rollouts.spec import RolloutSpec
from runners.sandboxes.contract import SandboxBackend
from runners.system.concurrency import TokenBucket
from runners.system.diagnostics import AttemptWatch
from runners.tasks.capture_limits import DEFAULT_LIMITS, CaptureLimits
from runners.tasks.contract import Task
from runners.tasks.repositories.task_repositories import use_repository_as_is
from runners.tasks.rollout_result import Grader


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptContext:
    """Everything an attempt works with, on whichever machine it runs; shared by all attempts."""

    backend: SandboxBackend
    harness: Harness
    grader: Grader
    gateway: GatewayAdmin
    gateway_url: str | None
    """The one address at which sandboxes reach every session (``gateway.public_url``); None: that
    of the session's own gateway process.
    """
    gateway_control: Path | None
    """A control socket of this machine (a relay's); None: that of the session's own process."""
    deadlines: DeadlinesConfig
    reward: ComputeReward
    scenario: str
    """The scenario's kind; stored with each session."""
    sandbox_starts: TokenBucket
    watch: AttemptWatch
    capture: CaptureLimits = DEFAULT_LIMITS
    """Sizes beyond which a patch is refused."""
    max_turns: int | None = None
    """Limit of model calls per attempt, over all its agents; None: no limit."""
    ready: Callable[[Task], Awaitable[Task]] = use_repository_as_is
    """Builds a task's repository if it is missing; raises SandboxError."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of an attempt that has ended."""

    record: RolloutRecord
    """Not marked as final: only the pool knows whether another attempt follows."""
    pushed_back: bool
    """True if the engine or the sandboxes refused work because they are overloaded."""
    shared: bool = False
    """True if another attempt has reported the same failure: the loss of the node of both."""


Execute = Callable[[AttemptContext, RolloutSpec, int, float], Awaitable[AttemptResult]]
"""Runs attempt number n of a rollout, which has waited so many seconds; raises as ``Attempt.run``.
"""
