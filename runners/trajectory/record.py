"""The records of a run: turns, segments, rollouts. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runners.outcome import Outcome

IdArray = NDArray[np.int32]
LogprobArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call, exactly as the engine saw and answered it."""

    session_id: str
    index: int
    """0, 1, … within the session, in order of completion."""
    branch: str
    """Branch kind; "main" in linear scenarios."""
    segment: int
    """Which exact-prefix chain of the session it belongs to; a break starts a new one."""
    prompt_kept: int
    """How many tokens of the chain so far (prompt + outputs of earlier turns) this prompt repeats:
    all of them, unless ``segment`` is new (then 0).
    """
    prompt_new: IdArray
    """Tokens this turn's prompt adds after the kept prefix, shape [n]."""
    output_ids: IdArray
    """Sampled tokens, shape [m], stop token included."""
    output_logprobs: LogprobArray
    """Logprob of each sampled token after temperature, shape [m]."""
    weight_version: int
    finish_reason: str
    """The engine's: stop | length | abort."""
    break_reason: str | None
    """Why a new segment started, None if the chain continued (or this is the first turn)."""
    malformed_calls: int
    """Tool calls in the output that did not parse."""
    request: dict[str, Any]
    """What the client sent that was new: {"messages": [...], "tools": [...] on the first turn,
    "max_tokens", …}.
    """
    response: dict[str, Any]
    """The message we answered (Anthropic Message body)."""
    usage: dict[str, int]
    """prompt_tokens, completion_tokens, cached_tokens."""
    started_at: float
    """Unix seconds."""
    engine_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A maximal token chain: concatenated, exactly the ids the model saw."""

    session_id: str
    index: int
    kind: str
    """"final" for the last chain of a linear session, "wipe" for one that a break ended."""
    tokens: IdArray
    """[T]"""
    loss_mask: NDArray[np.bool_]
    """[T]; True exactly on sampled tokens."""
    logprobs: LogprobArray
    """[T]; 0.0 where the mask is False."""
    weight_versions: NDArray[np.int32]
    """[T]; -1 where the mask is False."""
    turns: tuple[int, ...]
    """Turn indices it is made of."""


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One attempt of a rollout, as stored."""

    rollout_id: str
    """Unique in the run, e.g. "train-000012-03-05" (split, step, group, member) or
    "eval-000040-017-00".
    """
    attempt: int
    step: int
    split: str
    """"train" or "eval"."""
    group: int
    member: int
    task_id: str
    session_id: str
    """Gateway session of this attempt: ``{rollout_id}-a{attempt}``."""
    counts: bool
    """Exactly one attempt of a rollout counts."""
    outcome: Outcome
    reward: float | None
    """None: no grade, no reward."""
    solved: bool | None
    advantage: float | None
    turns: int
    sampled_tokens: int
    trained_tokens: int
    final_message: str
    patch: str
    verdict: dict[str, Any] | None
    timings: dict[str, float]
    """Seconds per phase: queue, boot, harness, patch, grade, teardown, total."""
    extra: dict[str, Any] = field(default_factory=dict)
