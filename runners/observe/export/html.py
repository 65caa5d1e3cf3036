"""Writes ``trajectories.html``: one page with every rollout, which needs no network and no server.

It is the page of ``agentrl view`` (``page_assets.py``), with the data in the file.

First come the rows of the list and the page's script, so that the list is there while the rest is
still being read; then, as blocks that a browser does not run, each rollout, compressed (zlib), and
before it the texts of its tokens that no earlier one had. A rollout is unpacked when somebody opens
it. None of it is ever read as markup: ``<`` is escaped here, and the script (``page/``) sets text
only.
"""

from __future__ import annotations

import html as markup
import shutil
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from runners.observe.export.contract import AddRollout, Decode, ExportedRollout, ExportedRun
from runners.observe.export.page_assets import make_block, split_single_page
from runners.observe.export.page_texts import TextCutter
from runners.records.record import Turn
from runners.records.text import dumps

NAME = "trajectories.html"
LEVEL = 6
"""Of compression."""
CHUNK = 1 << 16
ROWS = 500
"""Lines of the list in one block: a browser takes longer for many elements than for their text."""
_ROW = ("rollout_id", "attempt", "step", "split", "group", "member", "task", "advantage")
"""Fields of a rollout in its line of the list."""


@contextmanager
def write_html(folder: Path, run: ExportedRun) -> Iterator[AddRollout]:
    """Write the page around the rollouts."""
    head, middle, tail = split_single_page(run.name)
    texts = None if run.decode is None else _TokenTexts(run.decode)
    gateway = run.config.get("gateway")
    recorded = isinstance(gateway, dict) and bool(gateway.get("record_wire"))
    left_out = {"wire_left_out": True} if recorded else {}
    with (folder / NAME).open("w", encoding="utf-8") as file:
        file.write(head)
        if run.report is not None:
            file.write(make_block("document", dumps(run.report())))
        with TemporaryFile("w+", encoding="utf-8", dir=folder) as blocks:
            rows: list[str] = []  # as JSON: a tenth of its objects

            def add(rollout: ExportedRollout) -> None:
                if texts is not None:
                    blocks.write(make_block("words", dumps(texts.decode_new(rollout))))
                rows.append(dumps(_row(rollout)))
                if len(rows) == ROWS:
                    file.write(make_block("rows", f"[{','.join(rows)}]"))
                    rows.clear()
                graph = TextCutter().cut(build_turn_graph(rollout)) | left_out
                blocks.write(_packed(rollout.trajectory["rollout_id"], graph))

            yield add
            file.write(make_block("rows", f"[{','.join(rows)}]"))
            file.write(middle)
            blocks.seek(0)
            shutil.copyfileobj(blocks, file, CHUNK)
        file.write(tail)


class _TokenTexts:
    """Decodes each token once."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: set[int] = set()

    def decode_new(self, rollout: ExportedRollout) -> dict[int, str]:
        """Return the text of each token of a rollout that no earlier one had."""
        parts = [part for turn in rollout.turns for part in (turn.prompt_new, turn.output_ids)]
        fresh = set(np.unique(np.concatenate(parts)).tolist() if parts else ()) - self._known
        self._known |= fresh
        return {token: self._decode([token]) for token in sorted(fresh)}


def _packed(rollout_id: str, value: Mapping[Any, Any]) -> str:
    """Return a rollout as a block of base64, of zlib's form of its JSON."""
    data = b64encode(zlib.compress(dumps(value).encode(), LEVEL)).decode()
    name = markup.escape(f"rollout:{rollout_id}")
    return f'<script type="text/plain" class="rollout" id="{name}">{data}</script>\n'


def _row(rollout: ExportedRollout) -> dict[str, Any]:
    trajectory = rollout.trajectory
    return {
        **{key: trajectory[key] for key in _ROW},
        "code": trajectory["outcome"]["code"],
        "stage": trajectory["outcome"]["stage"],
        "score": trajectory["reward"]["score"],
        "solved": trajectory["reward"]["solved"],
        "turns": len(rollout.turns),
        "duration": trajectory["timings"].get("total"),
        "sampled": trajectory["tokens"]["sampled"],
        "trained": trajectory["tokens"]["trained"],
        "kinds": Counter(
            "main" if chain.kind in ("final", "wipe") else chain.kind for chain in rollout.chains
        ),
    }


def build_turn_graph(rollout: ExportedRollout, *, tokens: bool = True) -> dict[str, Any]:
    """Return a rollout as its turn graph, in which a prefix that chains share appears once; without
    ``tokens`` the ids and logprobs of its turns are left out.
    """
    trajectory = rollout.trajectory
    left_out = ("segments", "branches", "messages", "raw_prompt", "turns")
    return {
        **{key: value for key, value in trajectory.items() if key not in left_out},
        "chains": [
            {key: branch[key] for key in branch if key not in ("messages", "tools")}
            | {name: segment[name] for name in ("own_turns", "finish_reason", "masked")}
            for branch, segment in zip(trajectory["branches"], trajectory["segments"], strict=True)
        ],
        "turns": [
            part | _content(turn, tokens=tokens)
            for part, turn in zip(trajectory["turns"], rollout.turns, strict=True)
        ],
    }


def _content(turn: Turn, *, tokens: bool) -> dict[str, Any]:
    said = {"sent": turn.request.get("messages", []), "reply": turn.reply}
    if not tokens:
        return said
    return said | {
        "prompt_new": turn.prompt_new,
        "output_ids": turn.output_ids,
        "logprobs": np.round(turn.output_logprobs.astype(np.float64), 3),
    }
