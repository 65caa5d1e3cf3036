"""The records of a run: turns, segments, rollouts. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from runners.trajectory.outcome import Outcome

IdArray = NDArray[np.int32]
LogprobArray = NDArray[np.float32]

MAIN_THREAD = "main"
"""The thread of whoever names none."""

BranchKind = Literal["main", "subagent", "compaction", "side"]
"""What a turn is for: the task itself, a sub-agent's part of it, the summary that replaces a
history, or something aside (a title, a topic, a probe).
"""
SegmentKind = Literal["final", "wipe", "subagent", "compaction", "side"]
"""``final``: the last chain of the main thread; ``subagent``: of another thread; ``wipe``: a chain
whose history was replaced; ``compaction`` and ``side``: as the branch.
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call, exactly as the engine saw and answered it."""

    session_id: str
    index: int
    """0, 1, … within the session, in order of completion."""
    thread: str
    """Who speaks: ``MAIN_THREAD``, or the agent program's id of a sub-agent."""
    parent_thread: str | None
    """Thread that dispatched this one; None for "main" and for its own sub-agents' unnamed parent.
    """
    branch: BranchKind
    """What the turn is for."""
    segment: int
    """Which chain of the session trains its output: a chain grows at its end only, so a fork or a
    break starts a new one.
    """
    parent: int | None
    """Index of the turn whose prompt + output this prompt continues; None: rendered whole."""
    prompt_kept: int
    """How many tokens that is: the length of the parent's prompt + output, 0 without a parent."""
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
    """Why the history before it could not be continued, or was left; None if nothing was lost."""
    malformed_calls: int
    """Tool calls in the output that did not parse."""
    request: dict[str, Any]
    """What the client sent that was new: {"messages": [...], "tools": [...] on the first turn,
    "max_tokens", …}.
    """
    reply: dict[str, Any]
    """What was answered, in chat form: {"role": "assistant", "content", "reasoning_content"?,
    "tool_calls"?}.
    """
    usage: dict[str, int]
    """prompt_tokens, completion_tokens, cached_tokens."""
    started_at: float
    """Unix seconds."""
    engine_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A token chain, from its root: exactly the ids the model saw."""

    session_id: str
    index: int
    kind: SegmentKind
    thread: str
    parent_thread: str | None
    tokens: IdArray
    """[T]"""
    loss_mask: NDArray[np.bool_]
    """[T]; True exactly on the tokens sampled in this chain. Those of a prefix that it shares with
    another chain are True there.
    """
    logprobs: LogprobArray
    """[T]; 0.0 where the mask is False."""
    weight_versions: NDArray[np.int32]
    """[T]; -1 where the mask is False."""
    turns: tuple[int, ...]
    """Indices of the turns on its path, from the root."""
    own_turns: tuple[int, ...]
    """Those of them that were sampled in this chain."""


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
