"""Sessions, their turns and the turns' routing: what the gateway writes."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from runners.records.record import Turn, WireExchange
from runners.records.routing import RoutingShape, TurnRouting
from runners.records.session_summary import SessionSummary, TurnReply, summarize_session
from runners.records.store.arrays import TurnArrays
from runners.records.store.database import Database
from runners.records.store.record_rows import ROUTING, TURNS, read_routing, read_turn, routing_block
from runners.records.store.routing_files import RoutingPart
from runners.records.store.store_error import StoreError
from runners.records.store.tables import ROUTING_SINCE, WIRE_SINCE
from runners.records.text import dumps, loads

WIRE_LEVEL = 3
"""Of zlib: a body is read by few and written for every turn."""
INSERT_WIRE = "INSERT INTO wire VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
MAX_TURNS = 100
"""Of one statement: SQLite takes 32,766 values in one, and a turn has some thirty."""
SAMPLED_TOKENS = "coalesce(nullif(output_count, 0), json_extract(usage, '$.completion_tokens'), 0)"
"""The sampled tokens of a row of ``turn``: its ids, or without ids those that were counted."""


class SessionTables:
    """The part of a ``RunStore`` that the gateway writes."""

    _db: Database
    _arrays: TurnArrays

    def claim_arrays(self, wait_s: float = 0.0, *, writer: int = 0) -> None:
        """Take the lock of the only process that adds turns as this writer, whose number its files
        of arrays have; raises StoreError after ``wait_s``.

        The first turn would take that of writer 0 anyway; a gateway takes its own before it serves.
        """
        with self._db.translate_errors():
            self._arrays.claim(wait_s, writer=writer)

    def add_session(self, session_id: str, info: dict[str, Any]) -> None:
        """Add a session; raises StoreError if there is one of that id."""
        self._db.execute(
            "INSERT INTO session VALUES (?, ?, ?)", (session_id, dumps(info), time.time())
        )

    def sessions(self) -> dict[str, dict[str, Any]]:
        """Return every session's info."""
        return {
            row[0]: loads(row[1]) for row in self._db.rows("SELECT session_id, info FROM session")
        }

    def add_turn(
        self, turn: Turn, routing: TurnRouting | None = None, wire: WireExchange | None = None
    ) -> None:
        """Store a turn durably; see ``add_turns``."""
        self.add_turns([(turn, routing, wire)])

    def add_turns(
        self, turns: Sequence[tuple[Turn, TurnRouting | None, WireExchange | None]]
    ) -> None:
        """Store at most ``MAX_TURNS`` turns durably, all or none of them: first their arrays, then
        the rows that refer to them. With each turn its routing and its wire bodies, if there are
        any.
        """
        added: list[Any] = []
        others: list[tuple[str, Any]] = []
        with self._db.translate_errors():
            blocks = self._arrays.append(
                *((turn.prompt_new, turn.output_ids, turn.output_logprobs) for turn, *_ in turns)
            )
            for (turn, _, wire), block in zip(turns, blocks, strict=True):
                added += TURNS.encode(turn, block).values()
                if wire is not None:
                    others.append((INSERT_WIRE, _wire_row(turn, wire)))
            if routed := [(turn, routing) for turn, routing, _ in turns if routing is not None]:
                file = blocks[0].file
                written = self._arrays.routing.append(file, *(each.experts for _, each in routed))
                for (turn, routing), place in zip(routed, written, strict=True):
                    row = routing_block(turn, routing, *place, file=file)
                    others.append((ROUTING.insert, ROUTING.encode(row)))
            with self._db.write() if others else nullcontext():
                self._db.execute(TURNS.insert_many(len(turns)), added)
                for statement, values in others:
                    self._db.execute(statement, values)

    def wire(self, session_id: str, index: int) -> WireExchange | None:
        """Return what was recorded of a turn's request and answer; None: nothing was."""
        if self._version() < WIRE_SINCE:
            return None
        rows = self._db.rows(
            "SELECT path, headers, request, request_bytes, answer, answer_bytes FROM wire "
            "WHERE session_id = ? AND turn_index = ?",
            (session_id, index),
        )
        for path, headers, request, request_bytes, answer, answer_bytes in rows:
            return WireExchange(
                path=path,
                headers=[(name, value) for name, value in loads(headers)],
                request=zlib.decompress(request),
                request_bytes=request_bytes,
                answer=zlib.decompress(answer),
                answer_bytes=answer_bytes,
            )
        return None

    def wired_turns(self, session_id: str) -> frozenset[int]:
        """Return which of a session's turns were recorded as they were on the wire."""
        if self._version() < WIRE_SINCE:
            return frozenset()
        rows = self._db.rows("SELECT turn_index FROM wire WHERE session_id = ?", (session_id,))
        return frozenset(row[0] for row in rows)

    def routing(self, session_id: str) -> dict[int, TurnRouting]:
        """Return the routing of a session's turns by turn index; turns without any are left out."""
        if not self._holds_routing():
            return {}
        names = {row["name"] for row in self._db.rows("PRAGMA table_info(turn)")}
        spans = "turn.weight_spans" if "weight_spans" in names else "'[]' AS weight_spans"
        rows = self._db.rows(
            f"SELECT routing.*, turn.weight_version, {spans} FROM routing "
            "JOIN turn USING (session_id, turn_index) WHERE session_id = ?",
            (session_id,),
        )
        try:
            with self._db.translate_errors():
                return {row["turn_index"]: read_routing(row, self._arrays) for row in rows}
        except StoreError:
            if self.routed_turns(session_id):
                raise
            return {}  # the driver has deleted it since the rows were read

    def routed_turns(self, session_id: str) -> frozenset[int]:
        """Return which of a session's turns have routing."""
        if not self._holds_routing():
            return frozenset()
        rows = self._db.rows("SELECT turn_index FROM routing WHERE session_id = ?", (session_id,))
        return frozenset(row[0] for row in rows)

    def routed_sessions(self) -> set[str]:
        """Return the sessions of which routing is stored."""
        if not self._holds_routing():
            return set()
        return {row[0] for row in self._db.rows("SELECT DISTINCT session_id FROM routing")}

    def release_routing(self, is_needed: Callable[[str], bool]) -> list[Path]:
        """Forget the routing in those files that hold none of a session that ``is_needed``; return
        the files, which the caller deletes.

        Of a session that such a file has a part of nothing stays: it is routed as a whole or not at
        all. A writer's newest file stays. Of a caller that died the files are returned again.
        """
        complete = self._arrays.routing.find_complete() if self._holds_routing() else {}
        if not complete:
            return []
        # Rows of a complete part were all written before the next part began.
        held = self._db.rows("SELECT DISTINCT array_file, array_part, session_id FROM routing")
        needed = {RoutingPart(file, number) for file, number, session in held if is_needed(session)}
        if not (gone := sorted(complete.keys() - needed)):
            return []
        names = dumps([f"{part.writer}.{part.number}" for part in gone])
        self._db.execute(
            "DELETE FROM routing WHERE session_id IN (SELECT session_id FROM routing "
            "WHERE array_file || '.' || array_part IN (SELECT value FROM json_each(?)))",
            (names,),
        )
        return [complete[part] for part in gone]

    def routing_shape(self) -> RoutingShape | None:
        """Return the shape of the turns' routing; None if no turn has any.

        Every layer is taken for one that routes: the store does not know which are dense.
        """
        if not self._holds_routing():
            return None
        for layers, top_k, choices in self._db.rows(
            "SELECT layers, top_k, choices FROM routing LIMIT 1"
        ):
            return RoutingShape(layers, top_k, choices, routed=tuple(range(layers)))
        return None

    def _holds_routing(self) -> bool:
        return self._version() >= ROUTING_SINCE

    def _version(self) -> int:
        version: int = self._db.rows("PRAGMA user_version")[0][0]
        return version

    def turns(self, session_id: str, *, texts: bool = True) -> list[Turn]:
        """Return a session's turns, in order; without ``texts`` request and reply are empty, which
        are most of what is read.
        """
        columns = "*" if texts else self._columns_without_texts
        rows = self._db.rows(
            f"SELECT {columns} FROM turn WHERE session_id = ? ORDER BY turn_index", (session_id,)
        )
        with self._db.translate_errors():
            return [read_turn(row, self._arrays) for row in rows]

    @cached_property
    def _columns_without_texts(self) -> str:
        present = [row["name"] for row in self._db.rows("PRAGMA table_info(turn)")]
        texts = ("request", "reply")
        return ", ".join(f"'{{}}' AS {name}" if name in texts else name for name in present)

    def session_summary(self, session_id: str) -> SessionSummary:
        """Return the summary of a session's turns; reads no tokens and no requests."""
        rows = self._db.rows(
            "SELECT turn_index AS turn, thread, branch, finish_reason, malformed_calls, "
            f"{SAMPLED_TOKENS} AS sampled_tokens, reply, usage FROM turn WHERE session_id = ? "
            "ORDER BY turn_index",
            (session_id,),
        )
        return summarize_session(
            TurnReply(**dict(row) | {"reply": loads(row["reply"]), "usage": loads(row["usage"])})
            for row in rows
        )


def _wire_row(turn: Turn, wire: WireExchange) -> tuple[Any, ...]:
    return (
        *(turn.session_id, turn.index, wire.path, dumps(wire.headers)),
        *(zlib.compress(wire.request, WIRE_LEVEL), wire.request_bytes),
        *(zlib.compress(wire.answer, WIRE_LEVEL), wire.answer_bytes),
    )
