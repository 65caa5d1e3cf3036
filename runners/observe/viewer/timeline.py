"""Tells what happened when in one rollout, turn by turn over all its branches.

Between two turns of a thread the agent program works: it runs the tools that the first one called.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from runners.observe.viewer.rollout_view import ViewedRollout
from runners.records.outcome import Stage, place_stages
from runners.records.record import MAIN_THREAD, Turn
from runners.records.store import RunStore
from runners.records.text import dumps, loads, make_line, shorten

EVENTS = 200
"""The most events of a rollout."""
WAIT_S = 0.05
"""Seconds of a turn outside of the engine that are worth a word."""
CALLS, NAME, TEXT = 5, 40, 300
"""Tools of a turn that are named; characters of a name, and of a line."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened."""

    at: float
    """Unix seconds of its begin."""
    seconds: float | None
    """None: it has no length."""
    kind: Literal["stage", "turn", "tools", "weights", "event"]
    thread: str
    """Empty: of the whole attempt."""
    text: str
    turn: int | None = None
    fault: bool = False
    """It was cut off, or is an event: something to look at."""


def build_timeline(store: RunStore, view: ViewedRollout) -> list[Moment]:
    """Return what happened in an attempt, in order of the clock; texts are printable."""
    moments = [
        *_read_stages(store, view),
        *_read_events(store, view),
        *_describe_turns(view.exported.turns),
        *_find_switches(view.exported.turns),
    ]
    return sorted(moments, key=lambda moment: moment.at)


def timeline_to_page(moments: list[Moment]) -> dict[str, Any]:
    """Return the document of the page and of ``--json``."""
    return {"moments": [asdict(moment) for moment in moments]}


def _read_stages(store: RunStore, view: ViewedRollout) -> Iterator[Moment]:
    query = "SELECT created_at FROM session WHERE session_id = ?"
    for (opened_at,) in store.query(query, (view.record.session_id,)):
        timings = view.record.timings
        if not timings:
            yield Moment(opened_at, None, "stage", "", "the session is opened")
        for name, at, seconds in place_stages(timings, opened_at):
            said = "the agent program works" if name == Stage.HARNESS else name
            yield Moment(at, seconds, "stage", "", said)


def _read_events(store: RunStore, view: ViewedRollout) -> Iterator[Moment]:
    rows = store.query(
        "SELECT at, kind, data FROM event WHERE json_extract(data, '$.session_id') = ? "
        f"OR json_extract(data, '$.rollout_id') = ? ORDER BY event_id LIMIT {EVENTS}",
        (view.record.session_id, view.record.rollout_id),
    )
    for at, kind, data in rows:
        about = loads(data)
        rest = {name: about[name] for name in about if name not in ("session_id", "rollout_id")}
        yield Moment(at, None, "event", "", make_line(f"{kind}: {dumps(rest)}", TEXT), fault=True)


def _describe_turns(turns: list[Turn]) -> Iterator[Moment]:
    threads: dict[str, list[Turn]] = {}
    for turn in turns:
        threads.setdefault(turn.thread, []).append(turn)
        yield _describe_turn(turn)
    for thread, its in threads.items():
        its.sort(key=lambda turn: turn.started_at)
        for turn, following in pairwise(its):
            end = turn.started_at + turn.total_s
            text = _name_calls(turn)
            if text and following.started_at > end:
                name = make_line(thread, NAME)
                yield Moment(end, following.started_at - end, "tools", name, text, turn.index)


def _describe_turn(turn: Turn) -> Moment:
    about = [f"turn {turn.index}"]
    if turn.branch != MAIN_THREAD:
        about.append(turn.branch)
    about.append(f"{turn.prompt_tokens:,} + {turn.output_tokens:,} tokens")
    if (waited := turn.total_s - turn.engine_s) > WAIT_S:
        about.append(f"{waited:.2f} s of it outside the engine")
    if turn.malformed_calls:
        about.append(f"{turn.malformed_calls} malformed calls")
    if turn.break_reason:
        about.append(turn.break_reason)
    cut = turn.finish_reason != "stop"
    if cut:
        about.append(f"finish: {turn.finish_reason}")
    text, thread = make_line(" · ".join(about), TEXT), make_line(turn.thread, NAME)
    return Moment(turn.started_at, turn.total_s, "turn", thread, text, turn.index, fault=cut)


def _find_switches(turns: list[Turn]) -> Iterator[Moment]:
    """Yield a moment for each turn that other weights sampled than the turn before it."""
    ordered = sorted(turns, key=lambda turn: turn.started_at)
    for before, turn in pairwise(ordered):
        if turn.weight_version != before.weight_version:
            text = f"weights {before.weight_version} → {turn.weight_version}"
            yield Moment(turn.started_at, None, "weights", "", text)


def _name_calls(turn: Turn) -> str:
    """Return the names of the tools that a turn called; empty: of none."""
    calls = turn.reply.get("tool_calls") or ()
    functions = [call.get("function") for call in calls[:CALLS] if isinstance(call, dict)]
    names = [shorten(str(each.get("name")), NAME) for each in functions if isinstance(each, dict)]
    more = f" and {len(calls) - CALLS:,} more" if len(calls) > CALLS else ""
    return make_line(f"{', '.join(names)}{more}", TEXT) if names else ""
