"""How a rollout ended, and what that means for reward, loss mask, baseline and retry.

Both lists are closed. A foreign finish reason is kept apart, in ``raw_finish_reason``; it never
becomes a code.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OutcomeClass(StrEnum):
    """Who ended the rollout."""

    POLICY = "policy"
    BUDGET = "budget"
    INFRA = "infra"
    GRADER = "grader"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class OutcomeCode(StrEnum):
    """Why, in one word; the part before the dot is the class."""

    POLICY_FINISHED = "policy.finished"
    POLICY_GAVE_UP = "policy.gave_up"
    POLICY_FORMAT_ERROR = "policy.format_error"
    BUDGET_TURNS = "budget.turns"
    BUDGET_TOKENS = "budget.tokens"
    BUDGET_WALL = "budget.wall"
    INFRA_SANDBOX_START = "infra.sandbox_start"
    INFRA_SANDBOX_LOST = "infra.sandbox_lost"
    INFRA_MODEL = "infra.model"
    INFRA_GATEWAY = "infra.gateway"
    INFRA_HARNESS = "infra.harness"
    GRADER_ERROR = "grader.error"
    GRADER_TIMEOUT = "grader.timeout"
    CANCELLED_USER = "cancelled.user"
    INTERNAL_ERROR = "internal.error"

    @property
    def outcome_class(self) -> OutcomeClass:
        """The class this code belongs to."""
        return OutcomeClass(self.value.partition(".")[0])


class Stage(StrEnum):
    """The phase of a rollout in which its outcome was decided."""

    BOOT = "boot"
    HARNESS = "harness"
    PATCH = "patch"
    GRADE = "grade"
    TEARDOWN = "teardown"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an outcome class means."""

    reward_counts: bool
    """The rollout has a reward, and it enters the group's baseline."""
    trained: bool
    """Its sampled tokens enter the loss; otherwise they are masked."""
    retryable: bool
    """It is tried again in a fresh sandbox while attempts are left."""


MEANING: dict[OutcomeClass, Meaning] = {
    OutcomeClass.POLICY: Meaning(reward_counts=True, trained=True, retryable=False),
    OutcomeClass.BUDGET: Meaning(reward_counts=True, trained=True, retryable=False),
    OutcomeClass.INFRA: Meaning(reward_counts=False, trained=False, retryable=True),
    OutcomeClass.GRADER: Meaning(reward_counts=False, trained=False, retryable=True),
    OutcomeClass.CANCELLED: Meaning(reward_counts=False, trained=False, retryable=False),
    OutcomeClass.INTERNAL: Meaning(reward_counts=False, trained=False, retryable=True),
}
"""The one table: infrastructure failure is not reward 0."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended."""

    code: OutcomeCode
    stage: Stage
    message: str = ""
    """At most 512 characters."""
    raw_finish_reason: str | None = None
    """The agent's or engine's own word, kept apart."""

    def __post_init__(self) -> None:
        if len(self.message) > 512:
            object.__setattr__(self, "message", self.message[:511] + "…")

    @property
    def meaning(self) -> Meaning:
        """The row of ``MEANING`` that applies."""
        return MEANING[self.code.outcome_class]
