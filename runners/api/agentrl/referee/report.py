"""The report of a run: totals, a table, one JSON document, a page, and the story of one cell."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl.referee.conversation import ProgramRequest, RefereeError
from agentrl.referee.judge import Scores
from agentrl.referee.trial import Cell
from agentrl.referee.vocabulary import Vocabulary

SIGNS = {"clean": "ok", "costly": "cost", "lost": "LOST", "wrong": "WRONG", "not offered": "-"}
FAULTS = ("ghost", "doubled", "invented", "logprobs", "versions", "disobeyed", "calls")
EXIT_WRONG, EXIT_LOST = 1, 2


def describe_run(
    cells: Sequence[Cell], vocabulary: Vocabulary, *, gateway: str, date: str, ended: str = ""
) -> dict[str, Any]:
    """Return a run as JSON: ``explain`` and the page are made of it."""
    totals = Scores()
    for cell in cells:
        if not cell.not_offered:
            totals.add(cell.judgement.scores)
    return {
        "gateway": gateway,
        "date": date,
        "ended": ended,
        "totals": asdict(totals),
        "exit_code": find_exit_code(totals),
        "cells": [_describe_cell(cell, vocabulary) for cell in cells],
    }


def read_run(file: Path) -> dict[str, Any]:
    """Return what a run wrote; raises RefereeError."""
    try:
        run = json.loads(file.read_text("utf-8"))
        if run["cells"] is not None and run["totals"] is not None:
            return dict(run)
    except (LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        name = type(error).__name__
        raise RefereeError(f"{file} is no file of `referee run --out`: {name}: {error}") from error
    raise RefereeError(f"{file} is no file of `referee run --out`")


def find_exit_code(totals: Scores) -> int:
    """Return 1 for what is wrong, 2 for what is lost, else 0: more chains are a cost."""
    return EXIT_WRONG if totals.wrong else EXIT_LOST if totals.missing else 0


def _describe_cell(cell: Cell, vocabulary: Vocabulary) -> dict[str, Any]:
    scores = {key: value for key, value in asdict(cell.judgement.scores).items() if value}
    row = {
        "scenario": cell.scenario.name,
        "group": cell.scenario.group,
        "about": cell.scenario.about,
        "wire": cell.wire,
        "state": cell.state,
        "not_offered": cell.not_offered,
        "scores": scores,
        "findings": cell.judgement.findings,
    }
    if cell.state in ("clean", "not offered"):
        return row
    by_index = {sampling.index: sampling for sampling in cell.samplings}
    return row | {
        "program": cell.scenario.write(),
        "requests": [
            {
                "index": turn.index,
                "request": _describe_request(turn.request),
                "fault": turn.fault,
                "reply": turn.reply and _texts(turn.reply),
                "prompt": ""
                if turn.sampling is None
                else vocabulary.decode(by_index[turn.sampling].prompt),
            }
            for turn in cell.turns
        ],
        "engine": [
            {
                "call": sampling.index,
                "state": sampling.state,
                "prompt": vocabulary.decode(sampling.prompt),
                "output": vocabulary.decode(sampling.output),
            }
            for sampling in cell.samplings
        ],
        "samples": [
            {"text": vocabulary.decode(sample.tokens), "trained": sum(sample.mask)}
            for sample in cell.samples
        ],
        "differences": list(_find_differences(cell, vocabulary)),
    }


def _describe_request(request: ProgramRequest) -> dict[str, Any]:
    return {
        "system": request.system,
        "tools": [tool.name for tool in request.tools],
        "messages": [{"role": message.role, **_texts(message)} for message in request.history],
    }


def _texts(part: Any) -> dict[str, Any]:
    calls = [f"{call.name}({json.dumps(call.arguments)})" for call in part.calls]
    return {"text": part.text, "thought": part.thought, "calls": calls}


def _find_differences(cell: Cell, vocabulary: Vocabulary) -> Iterator[str]:
    """Yield where samples leave the engine's calls that they follow longest."""
    by_index = {sampling.index: sampling for sampling in cell.samplings}
    for finding in cell.judgement.findings:
        if finding["kind"] != "invented" or finding.get("call", -1) not in by_index:
            continue
        sampling, at = by_index[finding["call"]], finding["differs"]
        whole = sampling.prompt + sampling.output
        sample = cell.samples[finding["sample"]].tokens
        ours, theirs = (vocabulary.decode(tokens[at : at + 8]) for tokens in (whole, sample))
        yield (
            f"sample {finding['sample']} is engine call {sampling.index} up to token {at}; there "
            f"the engine had {ours!r}, the sample has {theirs!r}"
        )


# --- as text --------------------------------------------------------------------------------------


def write_totals(run: Mapping[str, Any]) -> str:
    """Return the line of totals."""
    totals = run["totals"]
    names = ("trained", "lost", *FAULTS, "refused", "chains")
    counts = ", ".join(f"{name} {totals[name]:,}" for name in names)
    judged = [cell for cell in run["cells"] if cell["state"] != "not offered"]
    clean = sum(cell["state"] == "clean" for cell in judged)
    return f"{clean} of {len(judged)} clean; sampled {totals['sampled']:,} tokens, {counts}"


def list_rows(run: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str, dict[str, Any]]]]:
    """Return the APIs, and for each scenario its group, its name and its cells by API."""
    wires: dict[str, None] = {}
    rows: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for cell in run["cells"]:
        wires[cell["wire"]] = None
        row = rows.setdefault(cell["scenario"], (cell["group"], cell["scenario"], {}))
        row[2][cell["wire"]] = cell
    return list(wires), list(rows.values())


def write_scores(cell: Mapping[str, Any]) -> str:
    """Return what a cell says: its state, and the scores that make it so."""
    names = (*FAULTS, "lost", "refused", "chains")
    scores = [f"{name} {cell['scores'][name]}" for name in names if cell["scores"].get(name)]
    return " ".join([SIGNS[cell["state"]], *scores])


def explain(run: Mapping[str, Any], scenario: str, wire: str | None = None) -> Iterator[str]:
    """Yield the story of one scenario; raises RefereeError if the run has none of that name."""
    cells = [
        cell
        for cell in run["cells"]
        if cell["scenario"] == scenario and wire in (None, cell["wire"])
    ]
    if not cells:
        names = sorted({cell["scenario"] for cell in run["cells"]})
        raise RefereeError(f"there is no {scenario!r} in this run; it has {', '.join(names)}")
    for cell in cells:
        yield f"{scenario} on {cell['wire']}: {write_scores(cell)}"
        yield f"  {cell['about']}"
        if cell["not_offered"]:
            yield f"  {cell['not_offered']}"
        for finding in cell["findings"]:
            yield f"  {finding['kind']}: {finding['text']}"
        yield from (f"  {line}" for line in cell.get("differences", ()))
        blamed = {finding.get("turn") for finding in cell["findings"]}
        for asked in cell.get("requests", ()):
            if asked["index"] in blamed:
                yield from _explain_request(asked)


def _explain_request(asked: Mapping[str, Any]) -> Iterator[str]:
    yield f"  request {asked['index']}, as the program sent it:"
    yield f"    system: {asked['request']['system']}"
    for message in asked["request"]["messages"]:
        calls = "".join(f"\n      {call}" for call in message["calls"])
        yield f"    {message['role']}: {message['text']}{calls}"
    if asked["fault"]:
        yield f"  it got no answer: {asked['fault']}"
    if asked["prompt"]:
        yield "  the prompt, as the engine saw it:"
        yield from (f"    {line}" for line in asked["prompt"].split("\n"))
    if asked["reply"]:
        calls = "".join(f" {call}" for call in asked["reply"]["calls"])
        yield f"  the program got: {asked['reply']['text']}{calls}"


# --- as a page ------------------------------------------------------------------------------------

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>referee</title><style>
body{{font:14px/1.4 sans-serif;margin:2em}}table{{border-collapse:collapse}}
td,th{{padding:2px 8px;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}}
.clean{{color:#0a6}}.costly{{color:#a70}}.lost,.wrong{{color:#c22;font-weight:bold}}
.offered{{color:#888}}details{{max-width:60em}}pre{{white-space:pre-wrap}}</style>
<h1>{gateway}</h1><p>{date}: {totals}</p>{ended}<table><tr>{head}</tr>{rows}</table></html>
"""


def write_page(run: Mapping[str, Any]) -> str:
    """Return the matrix as one page that needs nothing else; every text is escaped."""
    wires, rows = list_rows(run)
    head = "".join(f"<th>{_escape(name)}</th>" for name in ("", "", *wires))
    return _PAGE.format(
        gateway=_escape(run["gateway"]),
        date=_escape(run["date"]),
        totals=_escape(write_totals(run)),
        ended=f"<p>{_escape(run['ended'])}</p>" if run["ended"] else "",
        head=head,
        rows="".join(_write_row(row, wires, run) for row in rows),
    )


def _write_row(
    row: tuple[str, str, dict[str, Any]], wires: Iterable[str], run: Mapping[str, Any]
) -> str:
    group, name, cells = row
    parts = [f"<td>{_escape(group)}</td><td>{_escape(name)}</td>"]
    for wire in wires:
        cell = cells.get(wire)
        if cell is None:
            parts.append("<td></td>")
            continue
        kind = cell["state"].split()[-1]
        text = _escape(write_scores(cell))
        if cell["findings"] or cell["not_offered"]:
            story = _escape("\n".join(explain(run, name, wire)))
            text = f"<details><summary>{text}</summary><pre>{story}</pre></details>"
        parts.append(f'<td class="{kind}">{text}</td>')
    return f"<tr>{''.join(parts)}</tr>"


def _escape(text: object) -> str:
    return html.escape(str(text).encode("utf-8", "replace").decode())
