"""``trajectories.parquet``: one row per rollout, in the form of ``Trajectory``, zstd.

Columns and nested fields have the record's names and order. What has no fixed form (messages,
tools, verdict, usage, timings, extra) is JSON text. ``from_row`` gives the record back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.errors import ConfigError
from runners.export.contract import Add, Rollout, Run
from runners.store.json_text import dumps, loads

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "trajectories.parquet"
_JSON = ("messages", "tools", "usage", "timings", "verdict", "extra")
_JSON_OF_BRANCH = ("messages", "tools")
_GROUP_TOKENS = 2**20
"""A row group is written when its rollouts hold so many tokens: about 20 MB."""
_GROUP_ROWS = 256


@contextmanager
def parquet(folder: Path, run: Run) -> Iterator[Add]:
    """Write a row per rollout, row groups as they fill."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError(
            ["--format parquet needs pyarrow: pip install 'agentrl[parquet]'"]
        ) from None
    schema = _schema(pa)
    rows: list[dict[str, Any]] = []
    held = 0
    with pq.ParquetWriter(folder / NAME, schema, compression="zstd") as writer:

        def flush() -> None:
            nonlocal held
            writer.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()
            held = 0

        def add(rollout: Rollout) -> None:
            nonlocal held
            rows.append(to_row(rollout.trajectory))
            held += sum(len(chain.tokens) for chain in rollout.chains)
            if held >= _GROUP_TOKENS or len(rows) >= _GROUP_ROWS:
                flush()

        yield add
        if rows:
            flush()


def to_row(trajectory: dict[str, Any]) -> dict[str, Any]:
    """Return a record as a row."""
    branches = [
        branch | {name: _text(branch[name]) for name in _JSON_OF_BRANCH}
        for branch in trajectory["branches"]
    ]
    return trajectory | {name: _text(trajectory[name]) for name in _JSON} | {"branches": branches}


def from_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as a record."""
    branches = [
        branch | {name: _value(branch[name]) for name in _JSON_OF_BRANCH}
        for branch in row["branches"]
    ]
    return row | {name: _value(row[name]) for name in _JSON} | {"branches": branches}


def _text(value: Any) -> str | None:
    return None if value is None else dumps(value)


def _value(text: str | None) -> Any:
    return None if text is None else loads(text)


def _schema(pa: Any) -> pa.Schema:
    text, number, count, real = pa.string(), pa.int32(), pa.int64(), pa.float64()
    ids, reals = pa.list_(pa.int32()), pa.list_(pa.float32())
    outcome = dict.fromkeys(("class", "code", "stage", "message", "raw_finish_reason"), text)
    chain = {"index": number, "kind": text, "thread": text, "parent_thread": text}
    segment = chain | {
        "tokens": ids,
        "loss_mask": pa.list_(pa.uint8()),
        "logprobs": reals,
        "weight_versions": ids,
        "turns": ids,
        "own_turns": ids,
    }
    branch = chain | {
        "agent_type": text,
        "turns": ids,
        "messages": text,
        "tools": text,
        "break_reason": text,
    }
    turn = {
        "index": number,
        "thread": text,
        "branch": text,
        "segment": number,
        "parent": number,
        "prompt_tokens": number,
        "cached_tokens": number,
        "output_tokens": number,
        "weight_version": number,
        "finish_reason": text,
        "break_reason": text,
        "malformed_calls": number,
        "routed": pa.bool_(),
        "started_at": real,
        "engine_s": real,
        "total_s": real,
    }
    columns = {
        "schema_version": number,
        "run": text,
        "step": number,
        "split": text,
        "group": number,
        "member": number,
        "rollout_id": text,
        "attempt": number,
        "session_id": text,
        "task": text,
        "scenario": text,
        "outcome": pa.struct(outcome),
        "reward": pa.struct({"score": real, "solved": pa.bool_(), "counted": pa.bool_()}),
        "advantage": real,
        "messages": text,
        "tools": text,
        "raw_prompt": pa.struct({"ids": ids, "text": text}),
        "segments": pa.list_(pa.struct(segment)),
        "branches": pa.list_(pa.struct(branch)),
        "turns": pa.list_(pa.struct(turn)),
        "tokens": pa.struct(dict.fromkeys(("prompt", "sampled", "trained", "context"), count)),
        "usage": text,
        "timings": text,
        "final_message": text,
        "patch": text,
        "verdict": text,
        "extra": text,
    }
    return pa.schema(columns)
