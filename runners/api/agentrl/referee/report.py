"""The report of a run: one JSON document, of which the table, the page and the stories are made."""

from __future__ import annotations

import io
import json
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.referee.conversation import Message, RefereeError, readable
from agentrl.referee.judge import SCORES, WRONG, Cell, classify
from agentrl.referee.policy import Vocabulary

SIGNS = {
    "clean": ("ok", "green"),
    "costly": ("cost", "yellow"),
    "lost": ("LOST", "red"),
    "wrong": ("WRONG", "bold red"),
    "not offered": ("-", "dim"),
}
SHOWN = ("lost", *WRONG, "refused", "chains")


def describe_run(
    cells: Sequence[Cell], vocabulary: Vocabulary, *, gateway: str, ended: str = ""
) -> dict[str, Any]:
    """Return a run as JSON; ``ended``: why it ended before its end."""
    totals = Counter(dict.fromkeys(SCORES, 0))
    for cell in cells:
        if not cell.not_offered:
            totals.update(cell.scores)
    return {
        "gateway": gateway,
        "date": time.strftime("%Y-%m-%d"),
        "ended": ended,
        "totals": totals,
        "exit_code": {"wrong": 1, "lost": 2}.get(classify(totals), 0),
        "cells": [_describe_cell(cell, vocabulary) for cell in cells],
    }


def _describe_cell(cell: Cell, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "scenario": cell.scenario.name,
        "group": cell.scenario.group,
        "wire": cell.wire,
        "state": cell.state,
        "scores": +cell.scores,
        "findings": [asdict(finding) for finding in cell.findings],
        "program": cell.scenario.write(),
        "story": [_printable(line) for line in _tell(cell, vocabulary)],
    }


def read_run(file: Path) -> dict[str, Any]:
    """Return what a run wrote; raises RefereeError."""
    try:
        run: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return {**run, "cells": list(run["cells"])}
    except (LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise RefereeError(f"{file} is no file of `referee run --out`: {error!r}") from error


# --- the story of a cell --------------------------------------------------------------------------


def _tell(cell: Cell, vocabulary: Vocabulary) -> Iterator[str]:
    """Yield what happened: why it is not clean, and each request that is to blame."""
    yield f"{cell.scenario.name} on {cell.wire}: {cell.scenario.about}"
    if cell.not_offered:
        yield f"  not offered: {cell.not_offered}"
    yield from (f"  {finding.kind}: {finding.text}" for finding in cell.findings)
    blamed = {finding.turn for finding in cell.findings}
    for turn in cell.turns:
        if turn.index not in blamed:
            continue
        yield f"  request {turn.index}, as the program sent it:"
        yield f"    system: {turn.request.system}"
        for message in turn.request.history:
            yield from _tell_message(message.role, message)
        if turn.sampling is not None:
            yield "  the prompt, as the engine saw it:"
            yield textwrap.indent(vocabulary.decode(turn.sampling.prompt), " " * 4)
        if turn.reply is not None:
            yield from _tell_message("the program got", turn.reply)


def _tell_message(name: str, message: Message) -> Iterator[str]:
    yield f"    {name}: {message.text}"
    for call in message.calls:
        yield f"      {call.name}({json.dumps(call.arguments)})"


def _printable(text: str) -> str:
    """Return a text without characters that move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in readable(text))


def explain(run: Mapping[str, Any], scenario: str, wire: str | None = None) -> list[str]:
    """Return the story of one scenario; raises RefereeError if the run has none of that name."""
    cells = [cell for cell in run["cells"] if wire in (None, cell["wire"])]
    names = sorted({cell["scenario"] for cell in cells})
    if scenario not in names:
        raise RefereeError(f"there is no {scenario!r} in this run; it has {', '.join(names)}")
    return [line for cell in cells if cell["scenario"] == scenario for line in cell["story"]]


def write_totals(run: Mapping[str, Any]) -> str:
    """Return the line of totals."""
    totals = run["totals"]
    counts = ", ".join(f"{name} {totals[name]:,}" for name in ("trained", *SHOWN))
    judged = [cell for cell in run["cells"] if cell["state"] != "not offered"]
    clean = sum(cell["state"] == "clean" for cell in judged)
    return f"{clean} of {len(judged)} clean; sampled {totals['sampled']:,} tokens, {counts}"


def write_scores(cell: Mapping[str, Any]) -> str:
    """Return what a cell says: its state, and the scores that make it so."""
    scores = [f"{name} {cell['scores'][name]}" for name in SHOWN if cell["scores"].get(name)]
    return " ".join([SIGNS[cell["state"]][0], *scores])


def list_rows(run: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str, dict[str, Any]]]]:
    """Return the APIs, and for each scenario its group, its name and its cells by API."""
    rows: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for cell in run["cells"]:
        row = rows.setdefault(cell["scenario"], (cell["group"], cell["scenario"], {}))
        row[2][cell["wire"]] = cell
    return list({cell["wire"]: None for cell in run["cells"]}), list(rows.values())


def print_run(run: Mapping[str, Any], console: Console) -> None:
    """Print the matrix, the programs of walks that failed, and the line of totals."""
    wires, rows = list_rows(run)
    table = Table(box=None)
    for column in ("group", "scenario", *wires):
        table.add_column(column, overflow="fold")
    for group, name, cells in rows:
        styles = [SIGNS[cells[wire]["state"]][1] if wire in cells else "" for wire in wires]
        texts = [write_scores(cells[wire]) if wire in cells else "" for wire in wires]
        table.add_row(group, name, *map(Text, texts, styles))
    console.print(table)
    for cell in run["cells"]:
        if cell["scenario"] == "walk":
            text = f"\na random program fails on {cell['wire']}:\n{cell['program']}"
            console.print(Text(text), soft_wrap=True)
    console.print(Text(write_totals(run)), soft_wrap=True)


def write_page(run: Mapping[str, Any]) -> str:
    """Return the matrix, and the story of each cell that is not clean, as one page of HTML."""
    console = Console(record=True, file=io.StringIO(), width=140)
    console.print(Text(f"{run['gateway']}, {run['date']}"), Text(run["ended"], "red"))
    print_run(run, console)
    for cell in run["cells"]:
        if cell["state"] != "clean":
            console.print(Text("\n".join(["", *cell["story"]])))
    return console.export_html()
