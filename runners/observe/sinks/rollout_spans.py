"""Describe an attempt as spans: one for the whole, one for each stage, one for each model call.

Made of the stored record when the attempt is over, so a run's own steps need no tracing, wherever
they happen. They have names, times and numbers: no prompt, no answer, no key, no path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from runners.records.outcome import OutcomeClass, Stage, order_stages
from runners.records.record import MAIN_THREAD, TASK_SET, RolloutRecord
from runners.records.store import SAMPLED_TOKENS, RunStore

Value = str | bool | int | float
"""Of an attribute."""


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """A span with those inside it."""

    name: str
    start: float
    """Unix seconds."""
    seconds: float
    attributes: dict[str, Value]
    failed: bool = False
    inside: tuple[SpanFacts, ...] = field(default=())

    @property
    def end(self) -> float:
        """Unix seconds."""
        return self.start + self.seconds


def describe_attempt(store: RunStore, record: RolloutRecord, ended_at: float) -> SpanFacts:
    """Return the spans of an attempt, with its turns in the store.

    Stages follow each other; their places are reckoned from the session's creation, which is the
    end of ``session``, or else from ``ended_at``, Unix seconds.
    """
    spent = {name: record.timings.get(name, 0.0) for name in order_stages(record.timings)}
    opened = store.query(
        "SELECT created_at FROM session WHERE session_id = ?", (record.session_id,)
    )
    before = spent[Stage.QUEUE] + spent[Stage.SESSION]
    begun = opened[0][0] - before if opened else ended_at - sum(spent.values())
    turns = tuple(_describe_turns(store, record.session_id))
    stages, at = [], begun
    for name, seconds in spent.items():
        if name in record.timings:
            inside = turns if name == Stage.HARNESS else ()
            stages.append(SpanFacts(name, at, seconds, {}, inside=inside))
        at += seconds
    failing = record.outcome.outcome_class in (OutcomeClass.INFRA, OutcomeClass.INTERNAL)
    return SpanFacts(
        "rollout",
        begun,
        at - begun,
        dict(_describe_record(record)),
        failed=failing,
        inside=tuple(stages),
    )


def _describe_record(record: RolloutRecord) -> Iterator[tuple[str, Value]]:
    yield "agentrl.step", record.step
    yield "agentrl.split", record.split
    yield "agentrl.group", record.group
    yield "agentrl.member", record.member
    yield "agentrl.rollout_id", record.rollout_id
    yield "agentrl.attempt", record.attempt
    yield "agentrl.final", record.counts
    yield "agentrl.task", record.task_id
    if TASK_SET in record.extra:
        yield "agentrl.task_set", str(record.extra[TASK_SET])
    yield "agentrl.outcome", record.outcome.code.value
    yield "agentrl.outcome_stage", record.outcome.stage.value
    if record.solved is not None:
        yield "agentrl.solved", record.solved
    if record.reward is not None:
        yield "agentrl.reward", record.reward
    yield "agentrl.turns", record.turns
    yield "agentrl.sampled_tokens", record.sampled_tokens


def _describe_turns(store: RunStore, session_id: str) -> Iterator[SpanFacts]:
    rows = store.query(
        "SELECT turn_index, thread, branch, finish_reason, weight_version, usage, started_at, "
        f"engine_s, total_s, {SAMPLED_TOKENS} AS sampled FROM turn WHERE session_id = ? "
        "ORDER BY turn_index",
        (session_id,),
    )
    threads = {MAIN_THREAD: MAIN_THREAD}
    for row in rows:
        # A program names its threads as it likes, and a task's text may be in a name.
        thread = threads.setdefault(row["thread"], f"thread-{len(threads)}")
        usage = json.loads(row["usage"])
        yield SpanFacts(
            "turn",
            row["started_at"],
            row["total_s"],
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.usage.input_tokens": int(usage.get("prompt_tokens", 0)),
                "gen_ai.usage.output_tokens": int(row["sampled"]),
                "agentrl.finish_reason": row["finish_reason"],
                "agentrl.turn": row["turn_index"],
                "agentrl.thread": thread,
                "agentrl.branch": row["branch"],
                "agentrl.weight_version": row["weight_version"],
                "agentrl.engine_s": row["engine_s"],
            },
        )
