"""Turns, segments and rollouts of a run: plain data, no behaviour.

Each field of ``Turn`` and ``RolloutRecord`` is declared here and nowhere else: table, rows, export
and schema are derived from these classes by the marks of ``declaration.py``. A field that is added
needs a default, since the rows of older runs do not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from runners.records.declaration import IN_ARRAYS, NOT_EXPORTED, REQUIRED, Column, Exported
from runners.records.outcome import Outcome

IdArray = NDArray[np.int32]
LogprobArray = NDArray[np.float32]

UNKNOWN_VERSION = -1
"""Weight version of a turn whose engine does not report a number."""
TASK_SET = "task_set"
"""Key of a rollout's ``extra``: the name of its task's set, if it is of a mixture."""
MAIN_THREAD = "main"
"""Thread of every request that names none."""

BranchKind = Literal["main", "subagent", "compaction", "side"]
"""Purpose of a turn: the task itself, a sub-agent's part of it, the summary that replaces a
history, or a side request (a title, a topic, a probe).
"""
SegmentKind = Literal["final", "wipe", "edit", "subagent", "compaction", "side"]
"""``final``: the last chain of the main thread; ``subagent``: of another thread; ``wipe``: a chain
whose history was replaced; ``edit``: one that the agent program left by changing an answer of the
policy; ``compaction`` and ``side``: as the branch.
"""
WeightSpans = Sequence[Sequence[int]]
"""Pairs of a version and a number of tokens, in order: the weights of a generation that were
switched while it ran. No spans mean one version for all tokens, as almost always.
"""
EDIT_BREAK = "edit"
"""Beginning of ``Turn.break_reason``, before the colon, if the agent program changed an answer."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call: what the engine received and answered."""

    session_id: Annotated[str, Column(key=True), NOT_EXPORTED]
    index: Annotated[int, Column("turn_index", key=True)]
    """0, 1, … within the session, in order of completion."""
    thread: str
    """"main", or the agent program's id of a sub-agent."""
    parent_thread: Annotated[str | None, NOT_EXPORTED]
    """Thread that dispatched this one; None for "main" and for its own sub-agents' unnamed parent.
    """
    branch: BranchKind
    """Purpose of the turn."""
    segment: int
    """Chain of the session that trains the output. A chain grows at its end only, so a fork or a
    break starts a new one.
    """
    parent: int | None
    """Index of the turn whose prompt + output this prompt continues; null: rendered whole."""
    prompt_kept: Annotated[int, NOT_EXPORTED]
    """Tokens taken over from the parent: the length of its prompt + output, 0 without a parent."""
    prompt_new: Annotated[IdArray, IN_ARRAYS, NOT_EXPORTED]
    """Tokens that this prompt adds after the kept prefix, int32 [n]."""
    output_ids: Annotated[IdArray, IN_ARRAYS, NOT_EXPORTED]
    """Sampled tokens, int32 [m], stop token included."""
    output_logprobs: Annotated[LogprobArray, IN_ARRAYS, NOT_EXPORTED]
    """Log-probability of each sampled token after temperature, float32 [m]."""
    weight_version: int
    """Version of the weights that sampled the output, its end if they were switched meanwhile; -1
    if the engine does not report a number.
    """
    finish_reason: str
    """The engine's: stop, length or abort; of an endpoint also refusal."""
    break_reason: str | None
    """Why the history before it could not be continued, or was abandoned; null: nothing was lost.
    """
    malformed_calls: int
    """Tool calls in the output that did not parse."""
    request: Annotated[dict[str, Any], NOT_EXPORTED]
    """New parts of the client's request: {"messages": [...], "tools": [...] on the first turn,
    "max_tokens", …}.
    """
    reply: Annotated[dict[str, Any], NOT_EXPORTED]
    """The answer in chat form: {"role": "assistant", "content", "reasoning_content"?,
    "tool_calls"?}.
    """
    usage: Annotated[dict[str, int], NOT_EXPORTED]
    """prompt_tokens, completion_tokens, cached_tokens."""
    started_at: float
    """Unix seconds."""
    engine_s: float
    """Seconds in the engine."""
    total_s: float
    """Seconds from the request to its answer."""
    has_ids: bool = True
    """False: the engine takes and gives texts, so ids and logprobs are not known. Then ``parent``
    is the turn whose messages the request repeats, and counts of tokens are the endpoint's.
    """
    weight_spans: Annotated[list[list[int]], NOT_EXPORTED] = field(default_factory=list)
    """[[version, tokens], …] of the output if the weights were switched during the turn; empty: all
    are of ``weight_version``. The export has them per token, in the segments.
    """

    @property
    def output_versions(self) -> IdArray:
        """Version of the weights that sampled each token, int32 [m]."""
        return expand_spans(self.weight_spans, self.weight_version, len(self.output_ids))

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt."""
        if not self.has_ids:
            return self.usage["prompt_tokens"]
        return self.prompt_kept + len(self.prompt_new)

    @property
    def output_tokens(self) -> int:
        """Number of sampled tokens."""
        return len(self.output_ids) if self.has_ids else self.usage["completion_tokens"]

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the engine had in its cache, as it reported them."""
        return self.usage.get("cached_tokens", 0)


def find_spans(versions: NDArray[np.int32]) -> tuple[tuple[int, int], ...]:
    """Return the spans of versions, int32 [m]; none if all are the same.

    Example: ``[3, 3, 4]`` gives ``((3, 2), (4, 1))``.
    """
    starts = np.flatnonzero(np.diff(versions)) + 1
    if not len(starts):
        return ()
    edges = [0, *starts.tolist(), len(versions)]
    return tuple((int(versions[start]), stop - start) for start, stop in pairwise(edges))


def expand_spans(spans: WeightSpans, version: int, tokens: int) -> NDArray[np.int32]:
    """Return the version of each token, int32 [tokens]; without spans ``version`` for all.

    Spans of more tokens are cut. The last one's goes on for tokens after them: some servers leave
    out the stop token when they count.
    """
    if not spans:
        return np.full(tokens, version, np.int32)
    found = np.repeat(*np.array(spans, np.int32).T)[:tokens]
    return np.append(found, np.full(tokens - len(found), spans[-1][0], np.int32))


@dataclass(frozen=True, slots=True)
class WireExchange:
    """A turn's request and answer, as far as they were recorded; secrets are ``***``."""

    path: str
    headers: list[tuple[str, str]]
    """Of the request, in their order."""
    request: bytes
    """Its body; fewer bytes than ``request_bytes`` if it was cut off."""
    request_bytes: int
    """Length of the whole body."""
    answer: bytes
    """JSON of the answer; a stream carries the same."""
    answer_bytes: int


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
    """[T]; -1 where the mask is False, or the version is not known."""
    turns: tuple[int, ...]
    """Indices of the turns on its path, from the root."""
    own_turns: tuple[int, ...]
    """Those of them that were sampled in this chain."""


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One attempt of a rollout."""

    step: int
    """Training step, or number of steps before an evaluation."""
    split: str
    """"train" or "eval"."""
    group: Annotated[int, Column("group_index")]
    """Number of the task in its step."""
    member: int
    """Number of the rollout in its group."""
    rollout_id: Annotated[str, Column(key=True)]
    """Unique in the run, e.g. "train-000012-03-05" (split, step, group, member) or
    "eval-000040-017-00".
    """
    attempt: Annotated[int, Column(key=True)]
    """0, 1, … within the rollout."""
    session_id: str
    """Gateway session of this attempt: ``{rollout_id}-a{attempt}``."""
    task_id: Annotated[str, Exported("task")]
    counts: Annotated[bool, NOT_EXPORTED]
    """Exactly one attempt of a rollout counts."""
    outcome: Outcome
    """End of the attempt."""
    reward: Annotated[float | None, NOT_EXPORTED]
    """None: no grade, no reward."""
    solved: Annotated[bool | None, NOT_EXPORTED]
    """The grader's verdict; None without one."""
    advantage: float | None
    """Set when its group is complete; null for rollouts that are not trained."""
    turns: Annotated[int, NOT_EXPORTED]
    """Number of model calls."""
    sampled_tokens: Annotated[int, NOT_EXPORTED]
    trained_tokens: Annotated[int, NOT_EXPORTED]
    """Sampled tokens that have a gradient."""
    timings: dict[str, float]
    """Seconds per stage (``outcome.Stage``), of the teardown, and in total."""
    final_message: str
    """Last message of the agent."""
    patch: str
    """Difference between the base commit and the sandbox's files at the end."""
    verdict: dict[str, Any] | None
    """The grader's findings."""
    tool_turns: int | None = None
    """Model calls whose answer calls a tool (``SessionSummary.tool_turns``); null in older runs."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """Summands of the reward by name (``runners/rollouts/reward.py``); empty: it has no parts."""
    turn_rewards: list[float] = field(default_factory=list)
    """The share of the reward that turns earned, by their index; those after the last have 0."""
    tool_calls: int | None = None
    """Tool calls that parsed, of all threads; null in older runs."""
    extra: Annotated[dict[str, Any], REQUIRED] = field(default_factory=dict)
    """Facts that not every rollout has: its harness's version, faults that were injected, …"""
