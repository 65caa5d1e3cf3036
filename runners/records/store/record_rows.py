"""The tables of turns, their routing and rollouts, and the records of their rows."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Annotated

from runners.records.declaration import Column
from runners.records.record import RolloutRecord, Turn
from runners.records.routing import UINT8_EXPERTS, TurnRouting
from runners.records.session_summary import rename_counters
from runners.records.store.arrays import Block, TurnArrays
from runners.records.store.record_table import RecordTable
from runners.records.store.routing_files import RoutingPart
from runners.records.text import loads


@dataclass(frozen=True, slots=True)
class RoutingBlock:
    """Position of a turn's routing in its file of arrays, and the turn that it belongs to."""

    session_id: Annotated[str, Column(key=True)]
    turn_index: Annotated[int, Column(key=True)]
    start: int
    row_count: int
    layers: int
    top_k: int
    choices: int
    array_offset: int
    array_crc: int
    tokens_crc: int
    array_file: int = 0
    """As ``Block.file``."""
    array_part: int = 0
    """Number of the part (``routing_files.py``); 0 in runs from before there were several."""


TURNS = RecordTable("turn", Turn, Block, references="FOREIGN KEY (session_id) REFERENCES session")
ROUTING = RecordTable(
    "routing",
    RoutingBlock,
    references="FOREIGN KEY (session_id, turn_index) REFERENCES turn (session_id, turn_index)",
    rowid=False,
)
ROLLOUTS = RecordTable("rollout", RolloutRecord)


def read_turn(row: sqlite3.Row, arrays: TurnArrays) -> Turn:
    """Return the turn of a row; raises StoreError if its arrays are lost."""
    prompt_new, output_ids, output_logprobs = arrays.read(Block(**TURNS.decode(Block, row)))
    return Turn(
        **TURNS.decode(Turn, row),
        prompt_new=prompt_new,
        output_ids=output_ids,
        output_logprobs=output_logprobs,
    )


def routing_block(
    turn: Turn, routing: TurnRouting, part: int, offset: int, crc: int, *, file: int
) -> RoutingBlock:
    """Return the place of a turn's routing whose array lies at ``offset`` of a part of a writer's
    files.
    """
    rows, layers, top_k = routing.experts.shape
    return RoutingBlock(
        session_id=turn.session_id,
        turn_index=turn.index,
        start=routing.start,
        row_count=rows,
        layers=layers,
        top_k=top_k,
        choices=routing.choices,
        array_offset=offset,
        array_crc=crc,
        tokens_crc=routing.tokens_crc,
        array_file=file,
        array_part=part,
    )


def read_routing(row: sqlite3.Row, arrays: TurnArrays) -> TurnRouting:
    """Return the routing of a row of ``routing`` joined with its turn's ``weight_version`` and
    ``weight_spans``.
    """
    block = RoutingBlock(**ROUTING.decode(RoutingBlock, row))
    width = 1 if block.choices <= UINT8_EXPERTS else 2
    shape = (block.row_count, block.layers, block.top_k)
    part = RoutingPart(block.array_file, block.array_part)
    experts = arrays.routing.read(part, block.array_offset, block.array_crc, shape, width)
    version = row["weight_version"]
    routing = TurnRouting(block.start, experts, block.choices, block.tokens_crc, version)
    return routing.switch_weights(loads(row["weight_spans"]))


def read_rollout(row: sqlite3.Row) -> RolloutRecord:
    """Return the attempt of a row."""
    values = ROLLOUTS.decode(RolloutRecord, row)
    if "session" in values["extra"]:
        values["extra"]["session"] = rename_counters(values["extra"]["session"])
    return RolloutRecord(**values)
