"""Writes ``trajectories.html``: one page with every rollout, which needs no network and no server.

Each rollout is written as blocks of JSON that a browser does not run: the texts of its tokens that
no earlier rollout had, a row for the list, and the rollout itself, which is parsed when somebody
opens it. None of it is ever read as markup: ``<`` is escaped here, and the page's script
(``page/``) sets text only.
"""

from __future__ import annotations

import html as markup
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from runners.export.contract import AddRollout, Decode, ExportedRollout, ExportedRun
from runners.store.json_text import dumps
from runners.trajectory.record import Turn

NAME = "trajectories.html"
_PAGE = Path(__file__).with_name("page")


@contextmanager
def write_html(folder: Path, run: ExportedRun) -> Iterator[AddRollout]:
    """Write the page around the rollouts."""
    page = (_PAGE / "page.html").read_text("utf-8")
    page = page.replace("{{title}}", markup.escape(f"{run.name} · trajectories"))
    page = page.replace("{{run}}", markup.escape(run.name))
    page = page.replace("{{style}}", (_PAGE / "page.css").read_text("utf-8"))
    head, _, tail = page.partition("{{rollouts}}")
    tail = tail.replace("{{script}}", (_PAGE / "page.js").read_text("utf-8"))
    texts = None if run.decode is None else _TokenTexts(run.decode)
    with (folder / NAME).open("w", encoding="utf-8") as file:
        file.write(head)

        def add(rollout: ExportedRollout) -> None:
            if texts is not None:
                file.write(_block("words", texts.decode_new(rollout)))
            file.write(_block("row", _row(rollout)))
            file.write(_block("rollout", _turn_graph(rollout)))

        yield add
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


def _block(kind: str, value: Mapping[Any, Any]) -> str:
    """Return a block of JSON without any ``<``, so that no ``</script>`` in it ends the block."""
    text = dumps(value).replace("<", "\\u003c")
    return f'<script type="application/json" class="{kind}">{text}</script>\n'


def _row(rollout: ExportedRollout) -> dict[str, Any]:
    trajectory = rollout.trajectory
    return {
        **{key: trajectory[key] for key in ("rollout_id", "step", "split", "task", "advantage")},
        "code": trajectory["outcome"]["code"],
        "score": trajectory["reward"]["score"],
        "solved": trajectory["reward"]["solved"],
        "turns": len(rollout.turns),
        "sampled": trajectory["tokens"]["sampled"],
        "trained": trajectory["tokens"]["trained"],
        "kinds": Counter(chain.kind for chain in rollout.chains),
    }


def _turn_graph(rollout: ExportedRollout) -> dict[str, Any]:
    """Return a rollout as its turn graph, in which a prefix that chains share appears once."""
    trajectory = rollout.trajectory
    left_out = ("segments", "branches", "messages", "raw_prompt", "turns")
    return {
        **{key: value for key, value in trajectory.items() if key not in left_out},
        "chains": [
            {key: branch[key] for key in branch if key not in ("messages", "tools")}
            | {"own_turns": segment["own_turns"]}
            for branch, segment in zip(trajectory["branches"], trajectory["segments"], strict=True)
        ],
        "turns": [
            part | _content(turn)
            for part, turn in zip(trajectory["turns"], rollout.turns, strict=True)
        ],
    }


def _content(turn: Turn) -> dict[str, Any]:
    return {
        "sent": turn.request.get("messages", []),
        "reply": turn.reply,
        "prompt_new": turn.prompt_new,
        "output_ids": turn.output_ids,
        "logprobs": np.round(turn.output_logprobs.astype(np.float64), 3),
    }
