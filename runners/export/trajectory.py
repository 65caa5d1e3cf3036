"""The trajectory record: the form of a line of ``trajectories.jsonl``.

``trajectory.schema.json`` is generated from these models by ``python -m
runners.export.trajectory`` and published beside them; a change that breaks readers raises
``schema_version``. What must be true of a record besides its form is in ``faults.py``.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from runners.trajectory.record import BranchKind, SegmentKind

SCHEMA_VERSION: Literal[2] = 2


class Part(BaseModel):
    """One part of the record."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class OutcomePart(Part):
    """How the attempt ended."""

    outcome_class: Literal["policy", "budget", "infra", "grader", "cancelled", "internal"] = Field(
        alias="class"
    )
    code: str
    """From the closed list of ``runners/trajectory/outcome.py``."""
    stage: str
    message: str
    raw_finish_reason: str | None
    """The agent's or engine's own word."""


class RewardPart(Part):
    """What the attempt earned."""

    score: float | None
    """Null: no grade, no reward."""
    solved: bool | None
    counted: bool
    """Whether the reward enters its group's baseline."""


class SegmentPart(Part):
    """A token chain from its root, exactly the ids the model saw; four lists of one length."""

    index: int
    kind: SegmentKind
    thread: str
    """Who speaks: "main", or the agent program's id of a sub-agent."""
    parent_thread: str | None
    tokens: list[int]
    loss_mask: list[Literal[0, 1]]
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
    """What the policy was offered; null: the trajectory's ``tools``."""
    break_reason: str | None
    """Why the chain began elsewhere than at the end of another."""


class TurnPart(Part):
    """One model call."""

    index: int
    thread: str
    branch: BranchKind
    """What it is for."""
    segment: int
    """The chain that trains its output."""
    parent: int | None
    """The turn whose prompt + output its prompt continues; null: rendered whole."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    weight_version: int
    finish_reason: str
    break_reason: str | None
    """Why the chain before it could not be continued."""
    malformed_calls: int
    routed: bool = False
    """Whether the store holds the experts that its engine chose; absent before there was a choice.
    """
    started_at: float
    engine_s: float
    total_s: float


class TokensPart(Part):
    """Counts of tokens."""

    prompt: int
    """The first prompt of the main thread."""
    sampled: int
    """All that the policy sampled: the one definition of response length."""
    trained: int
    """Sampled tokens that entered the loss."""
    context: int
    """Tokens of the segments that their masks leave out."""


class PromptPart(Part):
    """The first prompt of the main thread, as the engine got it."""

    ids: list[int]
    text: str | None
    """Decoded, special tokens included; null if dumped without a tokenizer."""


class Trajectory(Part):
    """One rollout: the attempt that counts, failed or not."""

    schema_version: Literal[2]
    run: str
    step: int
    split: Literal["train", "eval"]
    group: int
    member: int
    rollout_id: str
    attempt: int
    session_id: str
    task: str
    scenario: str
    outcome: OutcomePart
    reward: RewardPart
    advantage: float | None
    messages: list[dict[str, Any]]
    """The conversation of the final chain, in chat form: system, user, assistant, tool."""
    tools: list[dict[str, Any]]
    """What the policy was offered there."""
    raw_prompt: PromptPart
    segments: list[SegmentPart]
    branches: list[BranchPart]
    turns: list[TurnPart]
    tokens: TokensPart
    usage: dict[str, int]
    timings: dict[str, float]
    """Seconds per phase."""
    final_message: str
    patch: str
    verdict: dict[str, Any] | None
    extra: dict[str, Any]


def json_schema() -> str:
    """Return the text of ``trajectory.schema.json``."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "trajectory.schema.json",
    }
    return json.dumps(head | Trajectory.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(json_schema())
