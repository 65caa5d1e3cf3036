"""Draws lists of rollouts, and one rollout, for a terminal of any width.

What a policy wrote controls no terminal: every text goes through ``make_printable``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from runners.observe.live.dashboard import format_duration
from runners.observe.viewer.in_progress import RUNNING
from runners.observe.viewer.listing import Listing
from runners.observe.viewer.rollout_view import ViewedRollout
from runners.observe.viewer.timeline import Moment
from runners.records.record import Segment, Turn
from runners.records.text import make_line, make_printable, shorten

WIDE = 110
"""Columns of a terminal in which the list has outcome and advantage, too."""
LINE = 500
"""Characters of a foreign text that stands on one line: a task's name, an attempt's message."""
COLUMNS = 2000
"""Characters of a line, unless texts are shown whole: a policy decides how long a line is."""
BLOCK = 20_000
"""Characters that are laid out at once: of a text that is shown whole, a terminal gets one part
after the other.
"""
PARTS = 100
"""Messages of a turn, and arguments of a call, unless texts are shown whole."""
_UNKNOWN = "–"
_MOMENTS = {
    "stage": "bold",
    "turn": "",
    "tools": "bright_black",
    "weights": "yellow",
    "event": "red",
}
_ROLES = {"user": "cyan", "assistant": "blue", "tool": "bright_black", "system": "yellow"}


class RolloutList:
    """A page of rollouts, as wide as the terminal."""

    def __init__(self, listing: Listing, in_progress: int = 0) -> None:
        """``in_progress``: rollouts that are not in the list, since they have not ended."""
        self._listing = listing
        self._in_progress = in_progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, and the sums below it."""
        wide = options.max_width >= WIDE
        searched = any("hit" in row for row in self._listing.rows)
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("", no_wrap=True)
        longest = max((len(row["rollout_id"]) for row in self._listing.rows), default=0)
        table.add_column("rollout", no_wrap=True, min_width=longest)
        # Columns that may wrap give way to the others; their cells are cut off instead.
        table.add_column("task", min_width=8)
        if searched:
            table.add_column("found", ratio=1)
        else:
            if wide:
                table.add_column("outcome", no_wrap=True)
            table.add_column("reward", justify="right", no_wrap=True)
            for name in (*(("advantage",) if wide else ()), "turns", "tokens", "time"):
                table.add_column(name, justify="right", no_wrap=True)
        for row in self._listing.rows:
            cells = [
                _sign(row["solved"]),
                Text(row["rollout_id"]),
                _cut_off(_line(row["task"])),
            ]
            cells += [_cut_off(_hit(row))] if searched else list(_figures(row, wide))
            table.add_row(*cells)
        yield table
        yield _sums(self._listing)
        if self._in_progress:
            note = f"{self._in_progress:,} more in progress: --only {RUNNING}"
            yield Text(note, "bright_black")


def _cut_off(cell: Text) -> Text:
    """Let a cell end at its column's width, however its column is laid out."""
    cell.no_wrap, cell.overflow = True, "ellipsis"
    return cell


def _figures(row: dict[str, Any], wide: bool) -> Iterator[Text]:
    if wide:
        yield Text(row["code"], "" if row["score"] is not None else "yellow")
    ungraded = _UNKNOWN if wide else shorten(row["code"], 24)
    yield Text(ungraded, "yellow") if row["score"] is None else Text(f"{row['score']:.2f}")
    if wide:
        yield Text(_UNKNOWN if row["advantage"] is None else f"{row['advantage']:+.2f}")
    yield Text(str(row["turns"]))
    yield Text(f"{row['sampled']:,}")
    yield Text(format_duration(row["duration"]))


def _hit(row: dict[str, Any]) -> Text:
    hit = row["hit"]
    place = hit["field"] if hit["turn"] is None else f"turn {hit['turn']}"
    return Text.assemble((f"{place}: ", "bright_black"), hit["text"])


def _sums(listing: Listing) -> Text:
    sums, shown = listing.sums, len(listing.rows)
    parts = [f"{sums['rollouts']:,} rollouts"]
    if shown < sums["rollouts"]:
        parts[0] = f"{shown:,} of {parts[0]}"
    if sums["graded"]:
        parts.append(f"{sums['solved']:,} of {sums['graded']:,} solved")
    if sums["reward"] is not None:
        parts.append(f"reward {sums['reward']:.3f}")
    parts.append(f"{sums['sampled']:,} tokens")
    return Text(" · ".join(parts), "bright_black")


def render_rollout(
    view: ViewedRollout, chain: int | None, lines: int | None
) -> Iterator[RenderableType]:
    """Yield a rollout, to be printed part by part: its facts, branches, conversation, tests, patch.

    ``chain``: index of the branch whose conversation is shown, None: the final one; ``lines``: the
    most lines of one text, None: all. No part is larger than ``BLOCK``, however long a text is.
    """
    shown = _find_chain(view.exported.chains, chain)
    yield _head(view)
    yield _branches(view, shown)
    if shown is not None:
        for index in shown.turns:
            yield from _turn(view.exported.turns[index], shown, lines)
    record = view.record
    if record.verdict is not None:
        yield _title("tests")
        yield from _tests(record.verdict, lines)
    if record.patch:
        yield _title("patch")
        yield from map(_colour_diff, _clip(record.patch.rstrip("\n"), lines))


def render_timeline(moments: list[Moment]) -> RenderableType:
    """Return what happened when: seconds since the first moment, seconds that it took, thread."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("clock", "took"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("thread", no_wrap=True, overflow="ellipsis")
    table.add_column("what", ratio=1)
    for moment in moments:
        style = "red" if moment.fault else _MOMENTS[moment.kind]
        table.add_row(
            Text(f"{moment.at - moments[0].at:,.1f} s", "bright_black"),
            Text("" if moment.seconds is None else f"{moment.seconds:,.2f} s"),
            _text(moment.thread, "bright_black"),
            _text(moment.text, style),
        )
    return table


def _find_chain(chains: list[Segment], wanted: int | None) -> Segment | None:
    if wanted is not None:
        return next((chain for chain in chains if chain.index == wanted), None)
    return next((chain for chain in chains if chain.kind == "final"), chains[0] if chains else None)


def _count_turns(number: int) -> str:
    return f"{number} turn{'' if number == 1 else 's'}"


def _head(view: ViewedRollout) -> RenderableType:
    record = view.record
    head = Text.assemble(_sign(record.solved), " ", (record.rollout_id, "bold"), "  ")
    head.append_text(_line(record.task_id))
    facts = [
        f"attempt {record.attempt}",
        view.code if view.unended else f"{view.code} at {record.outcome.stage}",
        f"reward {_UNKNOWN if record.reward is None else f'{record.reward:.3f}'}",
        f"advantage {_UNKNOWN if record.advantage is None else f'{record.advantage:+.3f}'}",
        _count_turns(len(view.exported.turns)),
        f"{view.exported.trajectory['tokens']['sampled']:,} tokens sampled, "
        f"{record.trained_tokens:,} trained",
        format_duration(record.timings.get("total")),
    ]
    lines = [head, Text(" · ".join(facts), "bright_black")]
    if record.outcome.message:
        lines.append(_text(record.outcome.message, "yellow"))
    others = [each for each in view.attempts if each["attempt"] != record.attempt]
    lines += [
        _line(f"attempt {each['attempt']}: {each['code']} {each['message']}", "yellow")
        for each in others
    ]
    return Group(*lines)


def _branches(view: ViewedRollout, shown: Segment | None) -> RenderableType:
    if len(view.exported.chains) < 2:
        return Text("")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    parts = {part["index"]: part for part in view.exported.trajectory["segments"]}
    for chain in view.exported.chains:
        sampled = sum(view.exported.turns[index].output_tokens for index in chain.own_turns)
        why = view.exported.turns[chain.own_turns[0]].break_reason or ""
        mark = "→" if chain is shown else " "
        part = parts[chain.index]
        if part["finish_reason"] != "stop":
            why = f"{why} finish: {part['finish_reason']}".strip()
        if part["masked"] is not None:
            why = f"{why} not in the loss: {part['masked']}".strip()
        table.add_row(
            f"{mark} chain {chain.index}",
            chain.kind,
            _text(chain.thread),
            _count_turns(len(chain.own_turns)),
            f"{sampled:,} tokens",
            _text(why, "bright_black"),
        )
    return Group(_title("branches"), table)


def _turn(turn: Turn, chain: Segment, lines: int | None) -> Iterator[RenderableType]:
    about = [f"turn {turn.index}", turn.branch]
    about.append(f"{turn.prompt_tokens:,} + {turn.output_tokens:,} tokens")
    about.append(f"{turn.total_s:.1f} s")
    if turn.finish_reason != "stop":
        about.append(f"finish: {turn.finish_reason}")
    if turn.segment != chain.index:
        about.append(f"shared with chain {turn.segment}")
    sent = turn.request.get("messages") or []
    left_out = 0 if lines is None else max(0, len(sent) - PARTS)
    yield _title(" · ".join(about))
    if left_out:
        yield _more(left_out, "messages before")
    for each in (*sent[left_out:], turn.reply):
        yield from _said(each, lines)


def _said(message: dict[str, Any], lines: int | None) -> Iterator[RenderableType]:
    role = str(message.get("role", "?"))
    style = _ROLES.get(role, "")
    for name, text in (
        (f"{role} thinks", message.get("reasoning_content")),
        (role, message.get("content")),
    ):
        if text:
            yield _text(name, style)
            yield from _indent(_as_text(text), lines, "italic" if "thinks" in name else "")
    for call in message.get("tool_calls") or ():
        function = call.get("function", {}) if isinstance(call, dict) else {}
        yield Text.assemble((f"{role} calls ", style), _text(str(function.get("name")), "bold"))
        yield from _arguments(function.get("arguments"), lines)


def _arguments(given: Any, lines: int | None) -> Iterator[RenderableType]:
    if not isinstance(given, dict):
        yield from _indent(_as_text(given), lines)
        return
    left_out = 0 if lines is None else max(0, len(given) - PARTS)
    shown = [(str(name), _as_text(value)) for name, value in given.items()]
    shown = shown[: len(shown) - left_out]
    if lines is None and sum(len(name) + len(value) for name, value in shown) > BLOCK:
        for name, value in shown:  # a table has all of its cells in memory
            yield from _indent(name, None, "bright_black")
            yield from _indent(value, None, by=4)
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in shown:
        table.add_row(Group(*_clip(name, lines, "bright_black")), Group(*_clip(value, lines)))
    yield Padding(
        Group(table, _more(left_out, "more arguments")) if left_out else table, (0, 0, 0, 2)
    )


def _tests(verdict: dict[str, Any], lines: int | None) -> Iterator[RenderableType]:
    if verdict.get("reason"):
        yield from _clip(str(verdict["reason"]), lines)
    tests = verdict.get("tests")
    for result, names in tests.items() if isinstance(tests, dict) else ():
        style = {"passed": "green", "failed": "red"}.get(str(result), "yellow")
        sign = {"passed": "✓", "failed": "✗"}.get(str(result), "·")
        text = "\n".join(
            f"{sign} {name}" for name in (names if isinstance(names, list) else [names])
        )
        yield from _clip(text, lines, style)
    if verdict.get("log"):
        yield Text("")
        yield from _indent(_as_text(verdict["log"]).rstrip(), lines, "bright_black", end=True)


def _indent(
    text: str, lines: int | None, style: str = "", *, by: int = 2, end: bool = False
) -> Iterator[RenderableType]:
    for part in _clip(text, lines, style, end=end):
        yield Padding(part, (0, 0, 0, by))


def _colour_diff(text: Text) -> Text:
    for pattern, style in (
        (r"(?m)^\+.*$", "green"),
        (r"(?m)^-.*$", "red"),
        (r"(?m)^@@.*$", "cyan"),
    ):
        text.highlight_regex(pattern, style)
    text.highlight_regex(r"(?m)^(diff |index |--- |\+\+\+ ).*$", "bold default")
    return text


def _clip(text: str, lines: int | None, style: str = "", *, end: bool = False) -> Iterator[Text]:
    """Yield a text of at most so many lines, of a longer one its begin (or ``end``); with a limit
    of lines, each of them has at most ``COLUMNS`` characters. Without one all of it, in parts.
    """
    if lines is None:
        for part in _split(text):
            yield _text(part, style)
        return
    all_lines = text.split("\n")
    left_out = max(0, len(all_lines) - lines)
    kept = all_lines[left_out:] if end else all_lines[:lines]
    shown = _text("\n".join(map(_clip_line, kept)), style)
    note = [_more(left_out, "more lines")] if left_out else []
    yield from [*note, shown] if end else [shown, *note]


def _split(text: str) -> Iterator[str]:
    """Yield a text in parts of at most ``BLOCK`` characters that end where a line does, if one
    does; each is printed on lines of its own.
    """
    start = 0
    while start + BLOCK < len(text):
        end = text.rfind("\n", start, start + BLOCK)
        cut = end if end > start else start + BLOCK
        yield text[start:cut]
        start = cut + 1 if end > start else cut
    yield text[start:]


def _clip_line(line: str) -> str:
    left_out = len(line) - COLUMNS
    return line if left_out <= 0 else f"{line[:COLUMNS]}… {left_out:,} more characters: --full"


def _more(count: int, of_what: str) -> Text:
    return Text(f"… {count:,} {of_what}: --full", "bright_black")


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in value]
        return "\n".join(part if isinstance(part, str) else json.dumps(part) for part in parts)
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _sign(solved: bool | None) -> Text:
    return {None: Text("○", "yellow"), True: Text("✓", "green"), False: Text("✗", "red")}[solved]


def _title(text: str) -> Text:
    return Text.assemble("\n", (f"── {make_printable(text)}", "bold bright_black"))


def _text(text: str, style: str = "") -> Text:
    return Text(make_printable(text), style)


def _line(text: str, style: str = "") -> Text:
    """Return a foreign text that stands beside others on one line."""
    return Text(make_line(text, LINE), style)
