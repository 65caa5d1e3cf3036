"""One turn's request and answer as they were on the wire, for a terminal, a page, and as JSON."""

from __future__ import annotations

import json
from typing import Any

from rich.text import Text

from runners.observe.export.page_texts import cut_text
from runners.observe.viewer.filters import ViewError
from runners.observe.viewer.rollout_view import find_attempts
from runners.records.record import WireExchange
from runners.records.store import RunStore
from runners.records.text import make_printable

PAGE_TEXT = 200_000
"""Characters of a body that the page gets."""
SMALL = 10_000
"""Characters of indented JSON that are shown however short it was when it came."""


def find_wire(
    store: RunStore, rollout_id: str, turn: int, attempt: int | None = None
) -> WireExchange:
    """Return what was recorded of a turn of a rollout; raises ViewError if nothing was."""
    session_id = find_attempts(store, rollout_id, attempt).chosen.session_id
    found = store.wire(session_id, turn)
    if found is None:
        query = "SELECT count(*) FROM turn WHERE session_id = ?"
        turns = store.query(query, (session_id,))[0][0]
        if not 0 <= turn < turns:
            raise ViewError(f"{rollout_id} has no turn {turn}: it has {turns}")
        raise ViewError(
            f"turn {turn} of {rollout_id} was not recorded as it was on the wire: "
            "set gateway.record_wire=true before a run, or with --resume"
        )
    return found


def wire_to_dict(wire: WireExchange) -> dict[str, Any]:
    """Return the document of ``--json``; bodies are texts, as they came."""
    return {
        "path": wire.path,
        "headers": wire.headers,
        "request": wire.request.decode("utf-8", "replace"),
        "request_bytes": wire.request_bytes,
        "answer": wire.answer.decode("utf-8", "replace"),
        "answer_bytes": wire.answer_bytes,
    }


def wire_to_page(wire: WireExchange) -> dict[str, Any]:
    """Return the document of the page: whole JSON bodies indented, each of a bounded length."""
    return {
        "path": wire.path,
        "headers": wire.headers,
        "request": _fit_page(wire.request, wire.request_bytes),
        "answer": _fit_page(wire.answer, wire.answer_bytes),
    }


def _fit_page(kept: bytes, whole: int) -> str:
    return cut_text("\n".join(_show_body(kept, whole)), PAGE_TEXT, "--wire N")


def render_wire(wire: WireExchange) -> Text:
    """Return both, a whole JSON body indented."""
    lines = [f"POST {wire.path}", *(f"{name}: {value}" for name, value in wire.headers), ""]
    lines += _show_body(wire.request, wire.request_bytes)
    lines += ["", "── answer", *_show_body(wire.answer, wire.answer_bytes)]
    return Text(make_printable("\n".join(lines)))


def _show_body(kept: bytes, whole: int) -> list[str]:
    text = kept.decode("utf-8", "replace")
    try:
        return [_indent(json.loads(text), 4 * len(text) + SMALL) or text]
    except (ValueError, RecursionError):
        if len(kept) == whole:
            return [text]
        return [text, f"… cut off: {len(kept):,} bytes are kept, it came with {whole:,}"]


def _indent(value: Any, limit: int) -> str | None:
    """Return a value as indented JSON; None if that has more than ``limit`` characters: of deep
    lists, which a sandbox may send, nearly all of them would be blanks.
    """
    parts, size = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return "".join(parts)
