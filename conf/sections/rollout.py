"""The execution of rollouts: attempts, limits, deadlines."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat, PositiveInt

from conf.sections.section import Section


class DeadlinesConfig(Section):
    """Seconds per stage of an attempt; each begins with its stage, so queueing costs nothing."""

    boot_s: PositiveFloat = 120
    """Seconds for creating a sandbox."""
    harness_s: PositiveFloat = 1800
    """Seconds of the agent program, from its start to its end."""
    turn_s: PositiveFloat = 900
    """Seconds of one model call."""
    patch_s: PositiveFloat = 120
    """Seconds for reading the agent's change from the sandbox."""
    grade_s: PositiveFloat = 600
    """Seconds for grading in the second, clean sandbox."""
    teardown_s: PositiveFloat = 30
    """Seconds for removing a sandbox."""
    guard_s: PositiveFloat = 3000
    """Seconds of one attempt as a whole; it ends an attempt that hangs outside of every stage."""
    drain_s: ClassVar[float] = 30
    """Seconds for generations in flight to finish before new weights; then they are aborted."""


class LimitsConfig(Section):
    """Rate limits, retries and adaptive concurrency towards engine and sandboxes."""

    sandbox_starts_per_s: PositiveFloat | None = None
    """Sandboxes started per second; null: no limit."""
    engine_calls_per_s: PositiveFloat | None = None
    """Model calls started per second; null: no limit."""
    engine_attempts: PositiveInt = 3
    """Attempts per model call, with full jitter between them, before the agent gets an error."""
    adaptive: bool = True
    """Reduce the rollouts in flight when engine or sandboxes are overloaded (429, 503, a queue),
    and raise them again slowly.
    """


class CaptureConfig(Section):
    """Sizes beyond which an agent's change is refused: reward 0, as the agent's own doing."""

    patch_mb: PositiveFloat = 1
    """Largest patch, in MB; a file in it can have 8. SWE-bench's largest reference patch has 0.2
    MB.
    """
    workspace_mb: PositiveInt = 2048
    """The whole workspace on the disk, with what git ignores, in MB."""
    workspace_files: PositiveInt = 50000
    """Files and directories beyond the repository's own, with those that git ignores."""


class RolloutConfig(Section):
    """The execution of rollouts."""

    concurrency: PositiveInt = 64
    """Rollouts in flight."""
    attempts: PositiveInt = 3
    """Attempts per rollout before an infrastructure failure is final."""
    breaker: PositiveInt = 12
    """Consecutive failures of one class that end the run (exit code 1, or 4 if a service is gone);
    it can be resumed.
    """
    spare_groups: Annotated[int, Field(ge=0)] = 2
    """Largest number of further tasks per step that replace untrainable groups."""
    replace_flat: bool = False
    """Also replace groups whose rewards are all equal (DAPO's dynamic sampling, arXiv 2503.14476).
    """
    oversample_groups: Annotated[int, Field(ge=0)] = 0
    """Spare groups that begin with the step, whether they will be needed or not. Those that are too
    many are trained, too.
    """
    capture: CaptureConfig
    limits: LimitsConfig
    deadlines: DeadlinesConfig
