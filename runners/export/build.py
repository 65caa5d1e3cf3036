"""The account of one rollout, made of its stored turns: a ``Trajectory`` with numpy arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from runners.export.contract import Rollout, Run
from runners.export.trajectory import SCHEMA_VERSION
from runners.trajectory.conversation import join_messages, latest_tools
from runners.trajectory.graph import TurnGraph
from runners.trajectory.record import IdArray, RolloutRecord, Segment, Turn
from runners.trajectory.routing import TurnRouting


def account(
    record: RolloutRecord,
    turns: list[Turn],
    run: Run,
    routing: Callable[[], Mapping[int, TurnRouting]] = dict,
    routed: Set[int] = frozenset(),
) -> Rollout:
    """Return a rollout as exporters take it; raises ChainError if its turns do not fit.

    ``routing`` reads that of the turns; those that have any are ``routed``.
    """
    graph = TurnGraph(turns)
    chains = graph.build_segments()
    final = next((chain for chain in chains if chain.kind == "final"), None)
    path = [turns[index] for index in final.turns] if final else []
    offered = latest_tools(path)
    prompt = _first_prompt(graph, turns)
    sampled = sum(len(turn.output_ids) for turn in turns)
    text = run.decode(prompt.tolist()) if run.decode else None
    trajectory = {
        "schema_version": SCHEMA_VERSION,
        "run": run.name,
        "step": record.step,
        "split": record.split,
        "group": record.group,
        "member": record.member,
        "rollout_id": record.rollout_id,
        "attempt": record.attempt,
        "session_id": record.session_id,
        "task": record.task_id,
        "scenario": run.kind("scenario", "linear"),
        "outcome": _outcome(record),
        "reward": {
            "score": record.reward,
            "solved": record.solved,
            "counted": record.outcome.meaning.reward_counts and record.reward is not None,
        },
        "advantage": record.advantage,
        "messages": join_messages(path),
        "tools": offered,
        "raw_prompt": {"ids": prompt, "text": text},
        "segments": [_segment(chain) for chain in chains],
        "branches": [_branch(chain, turns, offered) for chain in chains],
        "turns": [_turn(turn, turn.index in routed) for turn in turns],
        "tokens": {
            "prompt": len(prompt),
            "sampled": sampled,
            "trained": record.trained_tokens,
            "context": sum(len(chain.tokens) for chain in chains) - sampled,
        },
        "usage": _usage(turns),
        "timings": record.timings,
        "final_message": record.final_message,
        "patch": record.patch,
        "verdict": record.verdict,
        "extra": record.extra,
    }
    return Rollout(record, turns, chains, trajectory, routing)


def _first_prompt(graph: TurnGraph, turns: list[Turn]) -> IdArray:
    """Return the first prompt of the main thread; of a session that has none, the first."""
    main = (node for node in graph.nodes if node.branch == "main")
    first = next(main, graph.nodes[0] if graph.nodes else None)
    if first is None:
        return np.zeros(0, np.int32)
    return first.tokens()[: first.length - len(turns[first.index].output_ids)]


def _outcome(record: RolloutRecord) -> dict[str, Any]:
    outcome = record.outcome
    return {
        "class": outcome.code.outcome_class,
        "code": outcome.code,
        "stage": outcome.stage,
        "message": outcome.message,
        "raw_finish_reason": outcome.raw_finish_reason,
    }


def _segment(chain: Segment) -> dict[str, Any]:
    return {
        "index": chain.index,
        "kind": chain.kind,
        "thread": chain.thread,
        "parent_thread": chain.parent_thread,
        "tokens": chain.tokens,
        "loss_mask": chain.loss_mask.astype(np.uint8),
        "logprobs": chain.logprobs,
        "weight_versions": chain.weight_versions,
        "turns": chain.turns,
        "own_turns": chain.own_turns,
    }


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


def _turn(turn: Turn, routed: bool) -> dict[str, Any]:
    return {
        "index": turn.index,
        "thread": turn.thread,
        "branch": turn.branch,
        "segment": turn.segment,
        "parent": turn.parent,
        "prompt_tokens": turn.prompt_kept + len(turn.prompt_new),
        "cached_tokens": turn.usage.get("cached_tokens", 0),
        "output_tokens": len(turn.output_ids),
        "weight_version": turn.weight_version,
        "finish_reason": turn.finish_reason,
        "break_reason": turn.break_reason,
        "malformed_calls": turn.malformed_calls,
        "routed": routed,
        "started_at": turn.started_at,
        "engine_s": turn.engine_s,
        "total_s": turn.total_s,
    }


def _usage(turns: list[Turn]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for turn in turns:
        total.update(turn.usage)  # unlike a sum of counters, this keeps zeros
    return dict(total)
