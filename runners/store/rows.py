"""Records as rows of the store, and back: ``from_row(to_row(x)) == x``."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from runners.store.arrays import Block, TurnArrays
from runners.store.json_text import clean_text, dumps, loads
from runners.trajectory.counters import rename_counters
from runners.trajectory.outcome import Outcome, OutcomeCode, Stage
from runners.trajectory.record import RolloutRecord, Turn
from runners.trajectory.routing import UINT8_EXPERTS, TurnRouting

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table, and the statements made of them."""

    table: str
    key: tuple[str, ...]
    rest: tuple[str, ...]

    @property
    def select(self) -> str:
        """Every row."""
        return f"SELECT {', '.join(self.key + self.rest)} FROM {self.table}"

    @property
    def insert(self) -> str:
        """A new row from named parameters."""
        names = self.key + self.rest
        values = ", ".join(f":{name}" for name in names)
        return f"INSERT INTO {self.table} ({', '.join(names)}) VALUES ({values})"

    @property
    def upsert(self) -> str:
        """A new row, or the row of that key written anew."""
        changes = ", ".join(f"{name} = excluded.{name}" for name in self.rest)
        return f"{self.insert} ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {changes}"


TURN = Columns(
    "turn",
    ("session_id", "turn_index"),
    (
        "thread",
        "parent_thread",
        "branch",
        "segment",
        "parent",
        "prompt_kept",
        "array_offset",
        "prompt_count",
        "output_count",
        "array_crc",
        "weight_version",
        "finish_reason",
        "break_reason",
        "malformed_calls",
        "request",
        "reply",
        "usage",
        "started_at",
        "engine_s",
        "total_s",
    ),
)
ROUTING = Columns(
    "routing",
    ("session_id", "turn_index"),
    (
        "start",
        "row_count",
        "layers",
        "top_k",
        "choices",
        "array_offset",
        "array_crc",
        "tokens_crc",
    ),
)
ROUTING_SINCE = 3
"""Version of the store that has the table."""
ROLLOUT = Columns(
    "rollout",
    ("rollout_id", "attempt"),
    (
        "step",
        "split",
        "group_index",
        "member",
        "task_id",
        "session_id",
        "counts",
        "code",
        "stage",
        "message",
        "raw_finish_reason",
        "reward",
        "solved",
        "advantage",
        "turns",
        "sampled_tokens",
        "trained_tokens",
        "final_message",
        "patch",
        "verdict",
        "timings",
        "extra",
    ),
)


def turn_to_row(turn: Turn, block: Block) -> Row:
    """Return the row of a turn whose arrays lie in ``block``."""
    return {
        "session_id": turn.session_id,
        "turn_index": turn.index,
        "thread": clean_text(turn.thread),
        "parent_thread": _text(turn.parent_thread),
        "branch": turn.branch,
        "segment": turn.segment,
        "parent": turn.parent,
        "prompt_kept": turn.prompt_kept,
        "array_offset": block.offset,
        "prompt_count": block.prompt,
        "output_count": block.output,
        "array_crc": block.crc,
        "weight_version": turn.weight_version,
        "finish_reason": turn.finish_reason,
        "break_reason": _text(turn.break_reason),
        "malformed_calls": turn.malformed_calls,
        "request": dumps(turn.request),
        "reply": dumps(turn.reply),
        "usage": dumps(turn.usage),
        "started_at": turn.started_at,
        "engine_s": turn.engine_s,
        "total_s": turn.total_s,
    }


def turn_from_row(row: sqlite3.Row, arrays: TurnArrays) -> Turn:
    """Return the turn of a row."""
    block = Block(row["array_offset"], row["prompt_count"], row["output_count"], row["array_crc"])
    prompt_new, output_ids, logprobs = arrays.read(block)
    return Turn(
        session_id=row["session_id"],
        index=row["turn_index"],
        thread=row["thread"],
        parent_thread=row["parent_thread"],
        branch=row["branch"],
        segment=row["segment"],
        parent=row["parent"],
        prompt_kept=row["prompt_kept"],
        prompt_new=prompt_new,
        output_ids=output_ids,
        output_logprobs=logprobs,
        weight_version=row["weight_version"],
        finish_reason=row["finish_reason"],
        break_reason=row["break_reason"],
        malformed_calls=row["malformed_calls"],
        request=loads(row["request"]),
        reply=loads(row["reply"]),
        usage=loads(row["usage"]),
        started_at=row["started_at"],
        engine_s=row["engine_s"],
        total_s=row["total_s"],
    )


def routing_to_row(turn: Turn, routing: TurnRouting, offset: int, crc: int) -> Row:
    """Return the row of a turn's routing whose array lies at ``offset``."""
    rows, layers, top_k = routing.experts.shape
    return {
        "session_id": turn.session_id,
        "turn_index": turn.index,
        "start": routing.start,
        "row_count": rows,
        "layers": layers,
        "top_k": top_k,
        "choices": routing.choices,
        "array_offset": offset,
        "array_crc": crc,
        "tokens_crc": routing.tokens_crc,
    }


def routing_from_row(row: sqlite3.Row, arrays: TurnArrays) -> TurnRouting:
    """Return the routing of a row, which has its turn's weight version too."""
    shape = (row["row_count"], row["layers"], row["top_k"])
    width = 1 if row["choices"] <= UINT8_EXPERTS else 2
    experts = arrays.read_routing(row["array_offset"], row["array_crc"], shape, width)
    return TurnRouting(
        row["start"], experts, row["choices"], row["tokens_crc"], row["weight_version"]
    )


def rollout_to_row(record: RolloutRecord) -> Row:
    """Return the row of an attempt."""
    return {
        "rollout_id": record.rollout_id,
        "attempt": record.attempt,
        "step": record.step,
        "split": record.split,
        "group_index": record.group,
        "member": record.member,
        "task_id": record.task_id,
        "session_id": record.session_id,
        "counts": record.counts,
        "code": record.outcome.code,
        "stage": record.outcome.stage,
        "message": clean_text(record.outcome.message),
        "raw_finish_reason": _text(record.outcome.raw_finish_reason),
        "reward": record.reward,
        "solved": record.solved,
        "advantage": record.advantage,
        "turns": record.turns,
        "sampled_tokens": record.sampled_tokens,
        "trained_tokens": record.trained_tokens,
        "final_message": clean_text(record.final_message),
        "patch": clean_text(record.patch),
        "verdict": dumps(record.verdict),
        "timings": dumps(record.timings),
        "extra": dumps(record.extra),
    }


def rollout_from_row(row: sqlite3.Row) -> RolloutRecord:
    """Return the attempt of a row."""
    return RolloutRecord(
        rollout_id=row["rollout_id"],
        attempt=row["attempt"],
        step=row["step"],
        split=row["split"],
        group=row["group_index"],
        member=row["member"],
        task_id=row["task_id"],
        session_id=row["session_id"],
        counts=bool(row["counts"]),
        outcome=Outcome(
            OutcomeCode(row["code"]), Stage(row["stage"]), row["message"], row["raw_finish_reason"]
        ),
        reward=row["reward"],
        solved=None if row["solved"] is None else bool(row["solved"]),
        advantage=row["advantage"],
        turns=row["turns"],
        sampled_tokens=row["sampled_tokens"],
        trained_tokens=row["trained_tokens"],
        final_message=row["final_message"],
        patch=row["patch"],
        verdict=loads(row["verdict"]),
        timings=loads(row["timings"]),
        extra=_extra_from_json(row["extra"]),
    )


def _extra_from_json(text: str) -> dict[str, Any]:
    extra: dict[str, Any] = loads(text)
    if "session" in extra:
        extra["session"] = rename_counters(extra["session"])
    return extra


def _text(text: str | None) -> str | None:
    return None if text is None else clean_text(text)
