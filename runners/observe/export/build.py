"""Builds the trajectory of one rollout from its stored turns.

It has the form of ``Trajectory``, but is not validated, and its arrays are numpy's: exporters write
them as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from runners.observe.export.contract import ExportedRollout, ExportedRun
from runners.observe.export.conversation import join_messages, latest_tools
from runners.observe.export.derive import fill
from runners.observe.export.masked import find_masked
from runners.observe.export.trajectory import (
    SCHEMA_VERSION,
    OutcomePart,
    SegmentPart,
    Trajectory,
    TurnPart,
)
from runners.records.graph import TurnGraph
from runners.records.record import IdArray, RolloutRecord, Segment, Turn
from runners.records.routing import TurnRouting


def build_trajectory(
    record: RolloutRecord,
    turns: list[Turn],
    run: ExportedRun,
    routing: Callable[[], Mapping[int, TurnRouting]] = dict,
    routed: Set[int] = frozenset(),
) -> ExportedRollout:
    """Return a rollout as exporters take it; raises ChainError if its turns do not fit together.

    ``routing`` reads the routing of its turns, ``routed`` are the turns that have any.
    """
    graph = TurnGraph(turns)
    chains = graph.build_segments()
    final = next((chain for chain in chains if chain.kind == "final"), None)
    path = [turns[index] for index in final.turns] if final else []
    offered = latest_tools(path)
    prompt = _first_prompt(graph, turns)
    has_ids = all(turn.has_ids for turn in turns)
    sampled = sum(turn.output_tokens for turn in turns)
    masked = find_masked(record, chains, run.config)
    text = run.decode(prompt.tolist()) if run.decode else None
    trajectory = fill(
        Trajectory,
        record,
        schema_version=SCHEMA_VERSION,
        run=run.name,
        scenario=run.kind("scenario", "linear"),
        outcome=fill(OutcomePart, record.outcome),
        reward={
            "score": record.reward,
            "solved": record.solved,
            "counted": record.outcome.meaning.reward_counts and record.reward is not None,
        },
        messages=join_messages(path),
        tools=offered,
        raw_prompt={"ids": prompt, "text": text},
        segments=[
            _segment(chain, turns[chain.own_turns[-1]], masked.get(chain.index)) for chain in chains
        ],
        branches=[_branch(chain, turns, offered) for chain in chains],
        turns=[fill(TurnPart, turn, routed=turn.index in routed) for turn in turns],
        tokens={
            "prompt": len(prompt) if has_ids else _count_first_prompt(turns),
            "sampled": sampled,
            "trained": record.trained_tokens,
            "context": sum(len(chain.tokens) for chain in chains) - sampled if has_ids else 0,
        },
        usage=_usage(turns),
    )
    return ExportedRollout(record, turns, chains, trajectory, routing)


def _count_first_prompt(turns: list[Turn]) -> int:
    """Return the endpoint's count of the tokens of the prompt that ``_first_prompt`` would be."""
    main = (turn for turn in turns if turn.branch == "main")
    first = next(main, turns[0])
    return first.prompt_tokens


def _first_prompt(graph: TurnGraph, turns: list[Turn]) -> IdArray:
    """Return the first prompt of the main thread; of a session that has none, the first."""
    main = (node for node in graph.nodes if node.branch == "main")
    first = next(main, graph.nodes[0] if graph.nodes else None)
    if first is None:
        return np.zeros(0, np.int32)
    return first.tokens()[: first.length - len(turns[first.index].output_ids)]


def _segment(chain: Segment, last: Turn, masked: str | None) -> dict[str, Any]:
    own = {"finish_reason": last.finish_reason, "masked": masked}
    return {
        name: own[name] if name in own else getattr(chain, name)
        for name in SegmentPart.model_fields
    } | {"loss_mask": chain.loss_mask.astype(np.uint8)}


def _branch(chain: Segment, turns: list[Turn], offered: list[dict[str, Any]]) -> dict[str, Any]:
    path, first = [turns[index] for index in chain.turns], turns[chain.own_turns[0]]
    own = latest_tools(path)
    return {
        "index": chain.index,
        "kind": chain.kind,
        "thread": chain.thread,
        "parent_thread": chain.parent_thread,
        "agent_type": first.request.get("agent_type"),
        "turns": chain.turns,
        "messages": join_messages(path),
        "tools": None if own == offered else own,
        "break_reason": first.break_reason,
    }


def _usage(turns: list[Turn]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for turn in turns:
        total.update(turn.usage)  # unlike a sum of counters, this keeps zeros
    return dict(total)
