"""The turn graph of a session: a tree of turns, in which a shared prefix is stored once.

A chain (segment) is a path from the root; it grows at its end only, so a fork starts a new one.
Invariants, checked as turns are added: along a path the tokens are exactly those that the model
saw, at their positions; every sampled token belongs to one chain, which alone trains it.

Here too: which chains are trained, and their shares of the rollout's advantage. The trainer chooses
them of a step; a reader of the store does it again, to tell why a chain is not in the loss. A chain
is kept or dropped whole, but a final one may lose its tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conf.errors import AgentrlError, ExitCode
from conf.sections.plugin import PluginConfig
from conf.sections.training import (
    CollapseFanoutConfig,
    FanoutConfig,
    LocalTrainerConfig,
    SegmentsFanoutConfig,
    ShareName,
    TrainerConfig,
)
from runners.records.record import (
    EDIT_BREAK,
    MAIN_THREAD,
    BranchKind,
    IdArray,
    LogprobArray,
    Segment,
    SegmentKind,
    Turn,
)

DropReason = Literal[
    "unfinished", "collapsed", "side", "subagent", "compaction", "empty", "long", "many"
]
"""``unfinished``: the whole rollout, which ran out of its budget; ``collapsed``, ``side``,
``subagent``, ``compaction``: the configuration does not train such a segment; ``empty``: nothing
was sampled in it; ``long``, ``many``: a cap.
"""


class ChainError(AgentrlError):
    """Stored turns contradict each other: a token would be lost or trained twice."""

    exit_code = ExitCode.DATA_REFUSED


@dataclass(frozen=True, slots=True, eq=False)
class TurnNode:
    """A turn, with the tokens that it adds to its parent's path."""

    index: int
    parent: TurnNode | None
    thread: str
    parent_thread: str | None
    branch: BranchKind
    segment: int
    prompt_new: IdArray
    """int32 [n]"""
    output_ids: IdArray
    """int32 [m]"""
    output_logprobs: LogprobArray
    """float32 [m]"""
    output_versions: IdArray
    """int32 [m]"""
    length: int
    """Tokens from the root to the end of the output."""
    depth: int
    """Nodes from the root to this one, both counted."""
    follows_edit: bool = False
    """The agent program changed an answer before it."""

    def path(self) -> list[TurnNode]:
        """Return the nodes from the root to this one."""
        nodes: list[TurnNode] = []
        node: TurnNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def ancestor(self, depth: int) -> TurnNode:
        """Return the node that is the ``depth``-th of this one's path, the root being the first.

        It is mostly near the end of the path: a request continues the last turn.
        """
        node = self
        while node.depth > depth:
            assert node.parent is not None  # the root's depth is 1
            node = node.parent
        return node

    def tokens(self) -> IdArray:
        """Return prompt + output, exactly as the model saw them, int32 [length]."""
        return np.concatenate(
            [part for node in self.path() for part in (node.prompt_new, node.output_ids)]
        )


class TurnGraph:
    """The turns of one session; grows by ``add`` only."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        """Add stored turns, which come in order of ``index``; raises ChainError."""
        self.nodes: list[TurnNode] = []
        self._leaves: dict[int, TurnNode] = {}
        """Last node of each chain, chains in order of their first turn."""
        self._session_id: str | None = None
        for turn in turns:
            self.add(turn)

    @property
    def chains(self) -> int:
        """Number of chains; the index of the next one."""
        return len(self._leaves)

    def grows(self, node: TurnNode) -> bool:
        """Return whether a node is the end of its chain."""
        return self._leaves[node.segment] is node

    def add(self, turn: Turn) -> TurnNode:
        """Add the next turn; raises ChainError if it contradicts those before it."""
        node = self._make_node(turn)
        self._session_id = turn.session_id
        self.nodes.append(node)
        self._leaves[node.segment] = node
        return node

    def build_segments(self) -> list[Segment]:
        """Return every chain from its root, in order of their first turns."""
        # a chain that is not the last of its thread and branch was replaced by a later one
        last = {(node.thread, node.branch): node.segment for node in self.nodes}
        edited = self._find_edited()
        # a session of nothing but side requests was misread: what looks like one is its work
        only_aside = all(node.branch == "side" for node in self.nodes)
        return [
            self._segment(
                leaf,
                _kind(
                    "main" if only_aside else leaf.branch,
                    is_last=leaf.segment == last[leaf.thread, leaf.branch],
                    is_edited=leaf.segment in edited,
                ),
            )
            for leaf in self._leaves.values()
        ]

    def _find_edited(self) -> set[int]:
        """Return the chains that the agent program left by changing an answer."""
        edited: set[int] = set()
        latest: dict[tuple[str, BranchKind], int] = {}
        for node in self.nodes:
            place = node.thread, node.branch
            if node.follows_edit and place in latest:
                edited.add(latest[place])
            latest[place] = node.segment
        return edited

    def _make_node(self, turn: Turn) -> TurnNode:
        here = f"turn {turn.index} of session {turn.session_id}"
        if turn.index != len(self.nodes) or self._session_id not in (None, turn.session_id):
            raise ChainError(
                f"{here} stands where turn {len(self.nodes)} of session "
                f"{self._session_id or turn.session_id} belongs: "
                "a turn is missing, doubled or foreign"
            )
        if turn.parent is not None and not 0 <= turn.parent < len(self.nodes):
            raise ChainError(f"{here} continues turn {turn.parent}, which is not before it")
        parent = None if turn.parent is None else self.nodes[turn.parent]
        held = 0 if parent is None else parent.length
        if turn.prompt_kept != held:
            raise ChainError(
                f"{here} keeps {turn.prompt_kept} tokens of a path of {held}: "
                "the path would not be what the model saw"
            )
        if turn.output_logprobs.shape != turn.output_ids.shape:
            raise ChainError(
                f"{here} has {len(turn.output_ids)} sampled tokens and "
                f"{len(turn.output_logprobs)} logprobs"
            )
        end = self._leaves.get(turn.segment)
        if end is not None and end is not parent:
            raise ChainError(f"{here} grows chain {turn.segment}, but not at its end")
        return TurnNode(
            index=turn.index,
            parent=parent,
            thread=turn.thread,
            parent_thread=turn.parent_thread,
            branch=turn.branch,
            segment=turn.segment,
            prompt_new=turn.prompt_new,
            output_ids=turn.output_ids,
            output_logprobs=turn.output_logprobs,
            output_versions=turn.output_versions,
            length=held + len(turn.prompt_new) + len(turn.output_ids),
            depth=1 if parent is None else parent.depth + 1,
            follows_edit=(turn.break_reason or "").partition(":")[0] == EDIT_BREAK,
        )

    def _segment(self, leaf: TurnNode, kind: SegmentKind) -> Segment:
        path = leaf.path()
        own = [node for node in path if node.segment == leaf.segment]
        loss_mask = np.zeros(leaf.length, np.bool_)
        logprobs = np.zeros(leaf.length, np.float32)
        weight_versions = np.full(leaf.length, -1, np.int32)
        for node in own:
            span = slice(node.length - len(node.output_ids), node.length)
            loss_mask[span] = True
            logprobs[span] = node.output_logprobs
            weight_versions[span] = node.output_versions
        return Segment(
            session_id=self._session_id or "",
            index=leaf.segment,
            kind=kind,
            thread=leaf.thread,
            parent_thread=leaf.parent_thread,
            tokens=leaf.tokens(),
            loss_mask=loss_mask,
            logprobs=logprobs,
            weight_versions=weight_versions,
            turns=tuple(node.index for node in path),
            own_turns=tuple(node.index for node in own),
        )


def _kind(branch: BranchKind, *, is_last: bool, is_edited: bool) -> SegmentKind:
    if branch in ("compaction", "side"):
        return branch
    if not is_last:
        return "edit" if is_edited else "wipe"
    return "final" if branch == "main" else "subagent"


def build_segments(turns: Sequence[Turn]) -> list[Segment]:
    """Return one session's chains, from all its turns in order of ``index``; raises ChainError.

    The loss masks of the chains together cover every sampled token exactly once:

        sum(int(s.loss_mask.sum()) for s in build_segments(turns))
            == sum(len(turn.output_ids) for turn in turns)
    """
    return TurnGraph(turns).build_segments()


def common_prefix_length(first: NDArray[np.integer[Any]], *others: NDArray[np.integer[Any]]) -> int:
    """Return how many leading tokens (int32 [n_i]) or bytes (uint8 [n_i]) all sequences share; n_i
    may be 0.

    >>> common_prefix_length(np.array([7, 8, 9], np.int32), np.array([7, 8, 1, 2], np.int32))
    2
    """
    length = len(first)
    for other in others:
        length = min(length, len(other))
        differs = first[:length] != other[:length]
        at = int(differs.argmax()) if length else 0  # the first True; 0 also if there is none
        length = at if length and differs[at] else length
    return length


def choose_segments(
    segments: Iterable[Segment], config: FanoutConfig
) -> tuple[list[Segment], dict[int, DropReason]]:
    """Return the segments that become samples, and the reason against each other one, by index."""
    left_out: dict[int, DropReason] = {}
    kept = []
    for segment in segments:
        reason = _unwanted(segment, config) or _unusable(segment, config)
        if reason is None:
            kept.append(segment)
        else:
            left_out[segment.index] = reason
    if isinstance(config, SegmentsFanoutConfig):
        capped = _capped(kept, config.max_segments)
        few = {segment.index for segment in capped}
        left_out |= {segment.index: "many" for segment in kept if segment.index not in few}
        kept = capped
    return kept, left_out


def divide_advantage(kept: Sequence[Segment], rule: ShareName) -> list[float]:
    """Return each kept chain's share of the rollout's advantage, as a factor of it.

    With K chains of n sampled tokens each: ``copy`` 1; ``uniform`` 1 / K; ``token_share`` n / Σn;
    ``final_only`` 1 on the final chain, else 0; ``root_only`` 1 on chains of the main thread, else
    0. Example: ``token_share`` of chains with 2 and 6 sampled tokens: [0.25, 0.75].
    """
    match rule:
        case "copy":
            return [1.0] * len(kept)
        case "uniform":
            return [1.0 / len(kept) for _ in kept]
        case "token_share":
            tokens = [_sampled(segment) for segment in kept]
            return [count / sum(tokens) for count in tokens]
        case "final_only":
            return [float(segment.kind == "final") for segment in kept]
        case "root_only":
            return [float(_on_main_thread(segment)) for segment in kept]


def trains_without_advantage(trainer: TrainerConfig) -> bool:
    """Return whether tokens with an advantage of 0 have a gradient: a KL penalty, an entropy bonus,
    a teacher, or a loss of the user's own, which may do anything.
    """
    return isinstance(trainer, LocalTrainerConfig) and (
        isinstance(trainer.loss, PluginConfig)
        or trainer.kl.weight > 0
        or trainer.entropy_bonus > 0
        or trainer.distill.url is not None
    )


def _unwanted(segment: Segment, config: FanoutConfig) -> DropReason | None:
    """Return the reason why the configuration does not train such a segment; None if it does."""
    if isinstance(config, CollapseFanoutConfig):
        if segment.kind == "final":
            return None
        return "side" if segment.kind == "side" else "collapsed"
    if segment.kind == "side" and not config.train_side:
        return "side"
    if not _on_main_thread(segment) and not config.train_subagents:
        return "subagent"
    if segment.kind == "compaction" and not config.train_compaction:
        return "compaction"
    return None


def _unusable(segment: Segment, config: FanoutConfig) -> DropReason | None:
    """Return the reason why no sample can be made of a segment; None if one can."""
    if not segment.loss_mask.any():
        return "empty"
    longest = config.max_segment_tokens
    if longest is None or len(segment.tokens) <= longest:
        return None
    # what is left of a cut segment must have something to train
    may_cut = segment.kind == "final" and config.long_final == "cut"
    return None if may_cut and segment.loss_mask[:longest].any() else "long"


def _capped(kept: list[Segment], most: int | None) -> list[Segment]:
    """Return ``most`` segments in their order: the final one, the one with the most sampled tokens,
    and of the others the first. Those of kind ``edit`` come last: a policy that tampers with its
    program could make any number of them.
    """
    if most is None or len(kept) <= most:
        return kept
    longest = max(kept, key=_sampled)

    def rank(segment: Segment) -> tuple[bool, bool, bool]:
        return segment.kind != "final", segment is not longest, segment.kind == "edit"

    few = {segment.index for segment in sorted(kept, key=rank)[:most]}
    return [segment for segment in kept if segment.index in few]


def _on_main_thread(segment: Segment) -> bool:
    return segment.thread == MAIN_THREAD


def _sampled(segment: Segment) -> int:
    return int(segment.loss_mask.sum())
