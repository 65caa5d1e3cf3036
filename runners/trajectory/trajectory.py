"""The trajectory record: what a line of ``trajectories.jsonl`` holds, and what is true of it.

``trajectory.schema.json`` is generated from these models by ``python -m
runners.trajectory.trajectory`` and published beside them; a change that breaks readers raises
``schema_version``.
"""

from __future__ import annotations

import json
import math
import sys
from itertools import chain
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from runners.outcome import MEANING, OutcomeClass, OutcomeCode, Stage

SCHEMA_VERSION: Literal[1] = 1


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
    """From the closed list of ``runners/outcome.py``."""
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
    """A token chain, exactly the ids the model saw; five lists of one length."""

    index: int
    kind: str
    tokens: list[int]
    loss_mask: list[Literal[0, 1]]
    """1 exactly on sampled tokens."""
    logprobs: list[float | None]
    """At sampling time, after temperature; 0.0 where not sampled."""
    weight_versions: list[int]
    """-1 where not sampled."""
    turns: list[int]
    """Indices of the turns it is made of."""


class TurnPart(Part):
    """One model call."""

    index: int
    branch: str
    segment: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    weight_version: int
    finish_reason: str
    break_reason: str | None
    """Why the chain before it could not be continued."""
    malformed_calls: int
    started_at: float
    engine_s: float
    total_s: float


class TokensPart(Part):
    """Counts of tokens."""

    prompt: int
    """The first prompt."""
    sampled: int
    """All that the policy sampled: the one definition of response length."""
    trained: int
    """Sampled tokens that entered the loss."""
    context: int
    """Tokens in the segments that were not sampled."""


class PromptPart(Part):
    """The first prompt, as the engine got it."""

    ids: list[int]
    text: str | None
    """Decoded, special tokens included; null if dumped without a tokenizer."""


class Trajectory(Part):
    """One rollout: the attempt that counts, failed or not."""

    schema_version: Literal[1]
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
    """The conversation in chat form: system, user, assistant, tool."""
    tools: list[dict[str, Any]]
    raw_prompt: PromptPart
    segments: list[SegmentPart]
    turns: list[TurnPart]
    tokens: TokensPart
    usage: dict[str, int]
    timings: dict[str, float]
    """Seconds per phase."""
    final_message: str
    patch: str
    verdict: dict[str, Any] | None
    extra: dict[str, Any]


def faults(trajectory: Trajectory) -> list[str]:
    """Return what contradicts itself in a record of the right form."""
    found = [
        *_outcome_faults(trajectory),
        *chain.from_iterable(map(_segment_faults, trajectory.segments)),
    ]
    masked = sum(sum(segment.loss_mask) for segment in trajectory.segments)
    tokens = trajectory.tokens
    if masked != tokens.sampled:
        found.append(f"loss masks mark {masked} tokens, tokens.sampled says {tokens.sampled}")
    if sum(turn.output_tokens for turn in trajectory.turns) != tokens.sampled:
        found.append("turns and tokens.sampled disagree")
    if tokens.trained > tokens.sampled:
        found.append(f"trained {tokens.trained} of {tokens.sampled} sampled tokens")
    return found


def _outcome_faults(trajectory: Trajectory) -> list[str]:
    outcome, reward = trajectory.outcome, trajectory.reward
    if outcome.code not in list(OutcomeCode) or outcome.stage not in list(Stage):
        return [f"outcome {outcome.code!r} at stage {outcome.stage!r} is not in the closed list"]
    if OutcomeCode(outcome.code).outcome_class != outcome.outcome_class:
        return [f"outcome.class {outcome.outcome_class!r} is not the class of {outcome.code!r}"]
    meaning, found = MEANING[OutcomeClass(outcome.outcome_class)], []
    if reward.counted != (meaning.reward_counts and reward.score is not None):
        found.append(f"reward.counted is {reward.counted} for {outcome.code} with {reward.score}")
    if trajectory.tokens.trained and not meaning.trained:
        found.append(f"tokens of a rollout that ended in {outcome.code} were trained")
    return found


def _segment_faults(segment: SegmentPart) -> list[str]:
    lengths = {
        "tokens": len(segment.tokens),
        "loss_mask": len(segment.loss_mask),
        "logprobs": len(segment.logprobs),
        "weight_versions": len(segment.weight_versions),
    }
    where = f"segment {segment.index}"
    if len(set(lengths.values())) > 1:
        return [f"{where}: lists of different lengths {lengths}"]
    found = []
    rows = zip(segment.loss_mask, segment.logprobs, segment.weight_versions, strict=True)
    for position, (sampled, logprob, version) in enumerate(rows):
        if sampled and (logprob is None or not math.isfinite(logprob) or logprob > 1e-4):
            found.append(f"{where}: sampled token {position} has logprob {logprob}")
        elif not sampled and logprob != 0:
            found.append(f"{where}: token {position} was not sampled but has logprob {logprob}")
        elif (version >= 0) != bool(sampled):
            found.append(f"{where}: token {position} has weight version {version}")
    return found[:3]


def json_schema() -> str:
    """Return the text of ``trajectory.schema.json``."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "trajectory.schema.json",
    }
    return json.dumps(head | Trajectory.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(json_schema())
