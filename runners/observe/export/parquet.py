"""Writes ``trajectories.parquet``: one row per rollout, in the form of ``Trajectory``, zstd.

The columns follow from the model, in its names and order. Values without a fixed form (messages,
tools, verdict, usage, timings, extra) are JSON text. ``from_row`` returns the rollout again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
from pydantic.fields import FieldInfo

from conf.errors import ConfigError
from runners.observe.export.contract import AddRollout, ExportedRollout, ExportedRun
from runners.observe.export.derive import Part
from runners.observe.export.trajectory import INT64, Mask, Trajectory
from runners.records.declaration import split_optional
from runners.records.text import dumps, loads

NAME = "trajectories.parquet"
_GROUP_TOKENS = 2**20
"""A row group is written when its rollouts hold so many tokens: about 20 MB."""
_GROUP_ROWS = 256


@contextmanager
def write_parquet(folder: Path, run: ExportedRun) -> Iterator[AddRollout]:
    """Write a row per rollout, row groups as they fill."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError(
            "--format parquet needs pyarrow: pip install 'agentrl-campaigns[parquet]'"
        ) from None
    schema = pa.schema(_columns(pa, Trajectory))
    rows: list[dict[str, Any]] = []
    held = 0
    with pq.ParquetWriter(folder / NAME, schema, compression="zstd") as writer:

        def flush() -> None:
            nonlocal held
            writer.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()
            held = 0

        def add(rollout: ExportedRollout) -> None:
            nonlocal held
            rows.append(to_row(rollout.trajectory))
            held += sum(len(chain.tokens) for chain in rollout.chains)
            if held >= _GROUP_TOKENS or len(rows) >= _GROUP_ROWS:
                flush()

        yield add
        if rows:
            flush()


def to_row(trajectory: dict[str, Any], model: type[Part] = Trajectory) -> dict[str, Any]:
    """Return a rollout as a row."""
    return _convert(trajectory, model, lambda value: None if value is None else dumps(value))


def from_row(row: dict[str, Any], model: type[Part] = Trajectory) -> dict[str, Any]:
    """Return a row as a rollout."""
    return _convert(row, model, lambda text: None if text is None else loads(text))


def _convert(
    values: dict[str, Any], model: type[Part], convert: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return values with ``convert`` applied to those that are JSON text in a row."""
    texts, lists = _json_fields(model)
    changed: dict[str, Any] = {name: convert(values[name]) for name in texts}
    for name, part in lists.items():
        changed[name] = [_convert(each, part, convert) for each in values[name]]
    return values | changed


@cache
def _json_fields(model: type[Part]) -> tuple[list[str], dict[str, type[Part]]]:
    """Return the fields that are JSON text in a row, and the lists of parts that have such."""
    texts, lists = [], {}
    for name, info in model.model_fields.items():
        kind, part = _kind(info)
        if kind is dict or (kind is list and part is dict):
            texts.append(name)
        elif kind is list and issubclass(part, Part) and any(_json_fields(part)):
            lists[name] = part
    return texts, lists


def _columns(pa: Any, model: type[Part]) -> dict[str, Any]:
    return {info.alias or name: _type(pa, info) for name, info in model.model_fields.items()}


def _type(pa: Any, info: FieldInfo) -> Any:
    """Return the Arrow type of a field. A list's numbers are as many as tokens, so they are small;
    a single number is an int32, an int64 where the field is marked so, or a float64.
    """
    kind, part = _kind(info)
    if kind is dict or (kind is list and part is dict):
        return pa.string()
    if issubclass(part, Part):
        struct = pa.struct(_columns(pa, part))
        return pa.list_(struct) if kind is list else struct
    single = {str: pa.string(), bool: pa.bool_(), int: pa.int32(), float: pa.float64()}
    if kind is list:
        return pa.list_((single | {float: pa.float32(), np.uint8: pa.uint8()})[part])
    return pa.int64() if INT64 in info.metadata else single[kind]


def _kind(info: FieldInfo) -> tuple[Any, Any]:
    """Return a field's class, and that of its items if it is a list, else the same again."""
    inner, _ = split_optional(info.annotation)
    if get_origin(inner) is list:
        item, _ = split_optional(get_args(inner)[0])
        return list, _class_of(item)
    return _class_of(inner), _class_of(inner)


def _class_of(hint: Any) -> type[Any]:
    """Return the class of a type's values; a mask's are bytes."""
    if hint == Mask:
        return np.uint8
    origin: Any = get_origin(hint) or hint
    return type(get_args(hint)[0]) if origin is Literal else origin
