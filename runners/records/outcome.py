"""Outcomes of rollouts, and their effect on reward, loss mask, baseline, retry and evaluation.

All lists are closed. An agent's or engine's own finish reason is kept apart, in
``raw_finish_reason``; it never becomes a code.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from runners.records.declaration import REQUIRED
from runners.records.text import make_printable, shorten

MESSAGE_LENGTH = 512


class OutcomeClass(StrEnum):
    """The part of the system that ended the rollout."""

    POLICY = "policy"
    BUDGET = "budget"
    INFRA = "infra"
    GRADER = "grader"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class OutcomeCode(StrEnum):
    """The reason for the end; the part before the dot is the class."""

    POLICY_FINISHED = "policy.finished"
    POLICY_GAVE_UP = "policy.gave_up"
    POLICY_FORMAT_ERROR = "policy.format_error"
    POLICY_TAMPERED = "policy.tampered"
    """The patch made the tests pass without doing what they ask: reward of an unsolved task."""
    POLICY_REQUEST_LIMITS = "policy.request_limits"
    """The agent program failed after its sandbox had asked the gateway for more than a session may
    have (``gateway.limits``).
    """
    POLICY_AGENT_ENDED = "policy.agent_ended"
    """The agent program ended without a result, after its commands could have ended it."""
    POLICY_OVERSIZED_PATCH = "policy.oversized_patch"
    """The change is larger than what is graded (``rollout.capture``)."""
    POLICY_OVERSIZED_WORKSPACE = "policy.oversized_workspace"
    """The workspace is larger or deeper than what is read (``rollout.capture``)."""
    POLICY_UNREADABLE_WORKSPACE = "policy.unreadable_workspace"
    """The workspace cannot be read, for the sake of what is in it."""
    POLICY_FILLED_DISK = "policy.filled_disk"
    """The sandbox took so much of the disk that the others had none left."""
    BUDGET_TURNS = "budget.turns"
    BUDGET_TOKENS = "budget.tokens"
    BUDGET_WALL = "budget.wall"
    INFRA_SANDBOX_START = "infra.sandbox_start"
    INFRA_SANDBOX_LOST = "infra.sandbox_lost"
    INFRA_MODEL = "infra.model"
    INFRA_GATEWAY = "infra.gateway"
    INFRA_HARNESS = "infra.harness"
    INFRA_NODE_LOST = "infra.node_lost"
    GRADER_ERROR = "grader.error"
    GRADER_TIMEOUT = "grader.timeout"
    CANCELLED_USER = "cancelled.user"
    INTERNAL_ERROR = "internal.error"
    INTERNAL_GUARD = "internal.guard"

    @property
    def outcome_class(self) -> OutcomeClass:
        """The class this code belongs to."""
        return OutcomeClass(self.value.partition(".")[0])


class Stage(StrEnum):
    """Stages of an attempt; its outcome names the one in which it was decided."""

    QUEUE = "queue"
    SESSION = "session"
    BOOT = "boot"
    HARNESS = "harness"
    PATCH = "patch"
    FINISH = "finish"
    """The gateway session is being ended: it takes no more turns, all of them are durable."""
    GRADE = "grade"
    END = "end"


TEARDOWN = "teardown"
"""Key of an attempt's timings: the seconds in which its sandbox was closed. No stage: it decides no
outcome.
"""


def order_stages(timings: Container[str]) -> list[str]:
    """Return the stages, and the teardown, in the order in which an attempt with these timings went
    through them.

    The sandbox is closed when the patch is taken; one that is graded itself is closed after that.
    """
    names: list[str] = [stage.value for stage in Stage if stage is not Stage.END]
    after = names.index(Stage.PATCH) + 1 if Stage.PATCH in timings else len(names)
    names.insert(after, TEARDOWN)
    return names


def place_stages(
    timings: Mapping[str, float], opened_at: float
) -> Iterator[tuple[str, float, float]]:
    """Yield name, begin (Unix seconds) and seconds of the stages, and the teardown, of an attempt.

    A stage's seconds are recorded and its place is not: the first two end when the gateway opened
    the session, ``opened_at``, each of the others follows the one before it.
    """
    at = opened_at - timings.get(Stage.SESSION, 0.0) - timings.get(Stage.QUEUE, 0.0)
    for name in order_stages(timings):
        if name in timings:
            yield name, at, timings[name]
            at += timings[name]


TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.QUEUE: frozenset({Stage.SESSION, Stage.END}),
    Stage.SESSION: frozenset({Stage.BOOT, Stage.END}),
    Stage.BOOT: frozenset({Stage.HARNESS, Stage.END}),
    # No patch where the sandbox itself is graded.
    Stage.HARNESS: frozenset({Stage.PATCH, Stage.FINISH, Stage.END}),
    Stage.PATCH: frozenset({Stage.FINISH, Stage.END}),
    Stage.FINISH: frozenset({Stage.GRADE, Stage.END}),
    Stage.GRADE: frozenset({Stage.END}),
    Stage.END: frozenset(),
}
"""Legal next stages of an attempt: the next one, or the end."""


def advance(now: Stage, to: Stage) -> Stage:
    """Return ``to``; raises ValueError if an attempt cannot go there from ``now``."""
    if to not in TRANSITIONS[now]:
        raise ValueError(f"an attempt cannot go from {now} to {to}")
    return to


EvalColumn = Literal["verdict", "error", "not_run"]
"""Column in which an evaluation counts a rollout: ``verdict`` (solved or unsolved, as graded), or
apart from both.
"""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The effects of an outcome class."""

    reward_counts: bool
    """The rollout has a reward."""
    trained: bool
    """Its sampled tokens enter the loss; otherwise they are masked."""
    in_baseline: bool
    """Its reward enters the group's baseline."""
    retryable: bool
    """It is retried in a fresh sandbox while attempts are left."""
    eval_column: EvalColumn


_COUNTED = Meaning(
    reward_counts=True, trained=True, in_baseline=True, retryable=False, eval_column="verdict"
)
_FAILED = Meaning(
    reward_counts=False, trained=False, in_baseline=False, retryable=True, eval_column="error"
)
_UNDONE = Meaning(
    reward_counts=False, trained=False, in_baseline=False, retryable=False, eval_column="not_run"
)

MEANING: dict[OutcomeClass, Meaning] = {
    OutcomeClass.POLICY: _COUNTED,
    OutcomeClass.BUDGET: _COUNTED,
    OutcomeClass.INFRA: _FAILED,
    OutcomeClass.GRADER: _FAILED,
    OutcomeClass.INTERNAL: _FAILED,
    OutcomeClass.CANCELLED: _UNDONE,
}
"""The one table of effects. Infrastructure failure is not reward 0: it has no reward at all.
``trainer.train_unfinished=false`` masks the tokens of class ``budget``; its reward stays in the
baseline.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt."""

    code: OutcomeCode
    stage: Stage
    message: Annotated[str, REQUIRED] = ""
    """Printable (``make_printable``), at most 512 characters."""
    raw_finish_reason: Annotated[str | None, REQUIRED] = None
    """The agent's or engine's own name for it; printable and bounded too."""

    def __post_init__(self) -> None:
        for name in ("message", "raw_finish_reason"):
            if text := getattr(self, name):
                object.__setattr__(self, name, make_printable(shorten(text, MESSAGE_LENGTH)))

    @property
    def outcome_class(self) -> OutcomeClass:
        """The part of the system that ended the rollout."""
        return self.code.outcome_class

    @property
    def meaning(self) -> Meaning:
        """The row of ``MEANING`` that applies."""
        return MEANING[self.outcome_class]
