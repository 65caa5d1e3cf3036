"""The execution of rollouts: attempts, limits, deadlines."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from conf.sections.section import Section


class DeadlinesConfig(Section):
    """Seconds per stage of an attempt; each begins with its stage, so queueing costs nothing."""

    boot_s: PositiveFloat
    harness_s: PositiveFloat
    turn_s: PositiveFloat
    patch_s: PositiveFloat
    """Reading the agent's change from the sandbox."""
    grade_s: PositiveFloat
    teardown_s: PositiveFloat
    guard_s: PositiveFloat
    """One attempt as a whole; it ends an attempt that hangs outside of every stage."""
    drain_s: PositiveFloat
    """Time for generations in flight to finish before new weights; then they are aborted."""


class LimitsConfig(Section):
    """Rate limits, retries and adaptive concurrency towards engine and sandboxes."""

    sandbox_starts_per_s: PositiveFloat | None
    """Sandboxes started per second; null: no limit."""
    engine_calls_per_s: PositiveFloat | None
    """Model calls started per second; null: no limit."""
    engine_attempts: PositiveInt
    """Attempts per model call, with full jitter between them, before the agent gets an error."""
    adaptive: bool
    """Reduce the rollouts in flight when engine or sandboxes are overloaded (429, 503, a queue),
    and raise them again slowly.
    """


class CaptureConfig(Section):
    """Sizes beyond which an agent's change is refused: reward 0, as the agent's own doing."""

    patch_mb: PositiveFloat
    """The patch. SWE-bench's largest reference patch has 0.2 MB."""
    patch_files: PositiveInt
    """Files that the patch changes."""
    workspace_mb: PositiveInt
    """The whole workspace on the disk, with what git ignores."""
    workspace_files: PositiveInt
    """Files and directories beyond the repository's own, with those that git ignores."""


class RolloutConfig(Section):
    """The execution of rollouts."""

    concurrency: PositiveInt
    """Rollouts in flight."""
    attempts: PositiveInt
    """Attempts per rollout before an infrastructure failure is final."""
    breaker: PositiveInt
    """Consecutive failures of one class that end the run (exit code 1, or 4 if a service is gone);
    it can be resumed.
    """
    spare_groups: Annotated[int, Field(ge=0)]
    """Largest number of further tasks per step that replace untrainable groups."""
    replace_flat: bool
    """Also replace groups whose rewards are all equal (DAPO's dynamic sampling, arXiv 2503.14476).
    """
    oversample_groups: Annotated[int, Field(ge=0)]
    """Spare groups that begin with the step, whether they will be needed or not. Those that are too
    many are trained, too.
    """
    capture: CaptureConfig
    limits: LimitsConfig
    deadlines: DeadlinesConfig
