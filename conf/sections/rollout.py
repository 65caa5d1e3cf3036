"""How rollouts are run: tries, limits, deadlines."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from conf.sections.section import Section


class DeadlinesConfig(Section):
    """Seconds per phase; each starts when its phase starts, so that queueing eats no budget."""

    boot_s: PositiveFloat
    harness_s: PositiveFloat
    turn_s: PositiveFloat
    patch_s: PositiveFloat
    """Taking the agent's change out of the sandbox."""
    grade_s: PositiveFloat
    teardown_s: PositiveFloat
    guard_s: PositiveFloat
    """One attempt as a whole: what hangs outside every phase ends here."""
    drain_s: PositiveFloat
    """What generations in flight get to finish before new weights; then they are aborted."""


class LimitsConfig(Section):
    """How hard services are leant on."""

    sandbox_starts_per_s: PositiveFloat | None
    """Sandboxes made per second; null: no limit."""
    engine_calls_per_s: PositiveFloat | None
    """Model calls begun per second; null: no limit."""
    engine_attempts: PositiveInt
    """Tries per model call, with full jitter between them, before the agent sees an error."""
    adaptive: bool
    """Lower the rollouts in flight when the engine or the sandboxes push back (429, 503, a queue),
    and raise them again slowly.
    """


class RolloutConfig(Section):
    """How rollouts are run."""

    concurrency: PositiveInt
    """Rollouts in flight."""
    attempts: PositiveInt
    """Tries per rollout before its infrastructure failure counts."""
    breaker: PositiveInt
    """Failures of one class in a row that pause the run (exit code 1, or 4 if a service is gone).
    """
    spare_groups: Annotated[int, Field(ge=0)]
    """At most so many further tasks per step stand in for groups that cannot be trained."""
    replace_flat: bool
    """Replace groups whose rewards are all equal too (DAPO's dynamic sampling, arXiv 2503.14476).
    """
    limits: LimitsConfig
    deadlines: DeadlinesConfig
