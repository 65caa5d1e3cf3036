"""The form of a line of ``trajectories.jsonl``: one rollout.

``Trajectory`` and its parts declare what the records of a run do not have; the records' own fields
are added by ``fields_of``. ``python -m runners.campaigns.schema DIR`` writes their JSON schema; a
change that breaks readers raises ``schema_version``. ``validation.py`` checks what a schema cannot
say.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from runners.observe.export.derive import Part, fields_of
from runners.observe.export.masked import MaskReason
from runners.records.outcome import Outcome
from runners.records.record import RolloutRecord, SegmentKind, Turn

SCHEMA_VERSION: Literal[2] = 2

INT64 = "int64"
"""Marks counts that a Parquet column of 32 bits may not hold."""
Count = Annotated[int, INT64]
Mask = Literal[0, 1]


@fields_of(Outcome, {"outcome_class": None})
class OutcomePart(Part):
    """End of the attempt, from the closed lists of ``runners/records/outcome.py``."""

    outcome_class: Literal["policy", "budget", "infra", "grader", "cancelled", "internal"] = Field(
        alias="class"
    )


class RewardPart(Part):
    """Reward of the attempt."""

    score: float | None
    """Null: no grade, no reward."""
    solved: bool | None
    counted: bool
    """True if the reward enters its group's baseline."""


class SegmentPart(Part):
    """A token chain from its root, exactly the ids the model saw; four lists of one length."""

    index: int
    kind: SegmentKind
    thread: str
    """Speaker: "main", or the agent program's id of a sub-agent."""
    parent_thread: str | None
    tokens: list[int]
    loss_mask: list[Mask]
    """1 exactly on the tokens sampled in this chain: those of a prefix that it shares with another
    chain are 1 there, so over all segments each sampled token is 1 once.
    """
    logprobs: list[float | None]
    """At sampling time, after temperature; 0.0 where the mask is 0."""
    weight_versions: list[int]
    """-1 where the mask is 0."""
    turns: list[int]
    """Indices of the turns on its path, from the root."""
    own_turns: list[int]
    """Those of them that were sampled in this chain: the last ones."""
    finish_reason: str = ""
    """That of its last turn; absent in files of older versions."""
    masked: MaskReason | None = None
    """Why none of its tokens is in the loss; null: they are, or nothing is trained (evaluations,
    files of older versions).
    """


class BranchPart(Part):
    """A chain as a conversation; branch and segment of one index are the same chain."""

    index: int
    kind: SegmentKind
    thread: str
    parent_thread: str | None
    agent_type: str | None
    """The agent program's word for such a sub-agent."""
    turns: list[int]
    """As the segment's: the path from the root."""
    messages: list[dict[str, Any]]
    """The conversation along that path, in chat form: system, user, assistant, tool."""
    tools: list[dict[str, Any]] | None
    """Tools that the policy was offered; null: the trajectory's ``tools``."""
    break_reason: str | None
    """Why the chain began elsewhere than at the end of another."""


@fields_of(Turn, {"prompt_tokens": "parent", "routed": "malformed_calls"})
class TurnPart(Part):
    """One model call."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    routed: bool = False
    """True if the store has the experts that the engine chose; absent in files of older versions.
    """


class TokensPart(Part):
    """Counts of tokens."""

    prompt: Count
    """The first prompt of the main thread."""
    sampled: Count
    """All that the policy sampled: the one definition of response length."""
    trained: Count
    """Sampled tokens that entered the loss."""
    context: Count
    """Tokens of the segments that their masks leave out."""


class PromptPart(Part):
    """The first prompt of the main thread, as the engine got it."""

    ids: list[int]
    text: str | None
    """Decoded, special tokens included; null if dumped without a tokenizer."""


@fields_of(
    RolloutRecord,
    {"schema_version": None, "scenario": "task", "reward": "outcome", "messages": "advantage"},
)
class Trajectory(Part):
    """One rollout: the attempt that counts, failed or not."""

    schema_version: Literal[2]
    run: str
    split: Literal["train", "eval"]
    scenario: str
    outcome: OutcomePart
    reward: RewardPart
    messages: list[dict[str, Any]]
    """The conversation of the final chain, in chat form: system, user, assistant, tool."""
    tools: list[dict[str, Any]]
    """Tools that the policy was offered there."""
    raw_prompt: PromptPart
    segments: list[SegmentPart]
    branches: list[BranchPart]
    turns: list[TurnPart]
    tokens: TokensPart
    usage: dict[str, int]
    """Sums of what the engine reported for each turn."""
