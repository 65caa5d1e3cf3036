"""One turn's request and answer as they were on the wire, for a terminal and as JSON."""

from __future__ import annotations

import json
from typing import Any

from rich.text import Text

from runners.store.run_store import RunStore
from runners.trajectory.printable import make_printable
from runners.trajectory.wire import WireExchange
from runners.viewer.filters import ViewError
from runners.viewer.rollout_view import open_rollout

SMALL = 10_000
"""Characters of indented JSON that are shown however short it was when it came."""


def find_wire(store: RunStore, rollout_id: str, turn: int) -> WireExchange:
    """Return what was recorded of a turn of a rollout; raises ViewError if nothing was."""
    view = open_rollout(store, rollout_id)
    if not 0 <= turn < len(view.exported.turns):
        raise ViewError(f"{rollout_id} has no turn {turn}: it has {len(view.exported.turns)}")
    found = store.wire(view.record.session_id, turn)
    if found is None:
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
