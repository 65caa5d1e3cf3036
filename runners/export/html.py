"""``trajectories.html``: one page that shows every rollout, from a file, without network.

Each rollout is blocks of JSON that no browser runs: the texts of tokens that it is the first to
have, a small one for the list, and all of it, which is parsed when somebody opens it. Nothing of
them is ever read as markup: ``<`` is escaped here, and the page (``page/``) only sets text.
"""

from __future__ import annotations

import html as markup
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from runners.export.contract import Add, Decode, Rollout, Run
from runners.store.json_text import dumps
from runners.trajectory.record import Turn

NAME = "trajectories.html"
_PAGE = Path(__file__).with_name("page")


@contextmanager
def html(folder: Path, run: Run) -> Iterator[Add]:
    """Write the page around the rollouts."""
    page = (_PAGE / "page.html").read_text("utf-8")
    page = page.replace("{{title}}", markup.escape(f"{run.name} · trajectories"))
    page = page.replace("{{run}}", markup.escape(run.name))
    page = page.replace("{{style}}", (_PAGE / "page.css").read_text("utf-8"))
    head, _, tail = page.partition("{{rollouts}}")
    tail = tail.replace("{{script}}", (_PAGE / "page.js").read_text("utf-8"))
    words = None if run.decode is None else _Words(run.decode)
    with (folder / NAME).open("w", encoding="utf-8") as file:
        file.write(head)

        def add(rollout: Rollout) -> None:
            if words is not None:
                file.write(_block("words", words.new(rollout)))
            file.write(_block("row", _row(rollout)))
            file.write(_block("rollout", _whole(rollout)))

        yield add
        file.write(tail)


class _Words:
    """The text of each token, decoded and written once."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: set[int] = set()

    def new(self, rollout: Rollout) -> dict[int, str]:
        """Return the text of each token that no rollout had before."""
        parts = [part for turn in rollout.turns for part in (turn.prompt_new, turn.output_ids)]
        fresh = set(np.unique(np.concatenate(parts)).tolist() if parts else ()) - self._known
        self._known |= fresh
        return {token: self._decode([token]) for token in sorted(fresh)}


def _block(kind: str, value: Mapping[Any, Any]) -> str:
    """Return JSON that an HTML parser leaves alone: without ``<`` there is no ``</script>``."""
    text = dumps(value).replace("<", "\\u003c")
    return f'<script type="application/json" class="{kind}">{text}</script>\n'


def _row(rollout: Rollout) -> dict[str, Any]:
    said = rollout.trajectory
    return {
        **{key: said[key] for key in ("rollout_id", "step", "split", "task", "advantage")},
        "code": said["outcome"]["code"],
        "score": said["reward"]["score"],
        "solved": said["reward"]["solved"],
        "turns": len(rollout.turns),
        "sampled": said["tokens"]["sampled"],
        "trained": said["tokens"]["trained"],
        "kinds": Counter(chain.kind for chain in rollout.chains),
    }


def _whole(rollout: Rollout) -> dict[str, Any]:
    """Return a rollout as its turn graph, so that what chains share is there once."""
    said = rollout.trajectory
    left_out = ("segments", "branches", "messages", "raw_prompt", "turns")
    return {
        **{key: value for key, value in said.items() if key not in left_out},
        "chains": [
            {key: branch[key] for key in branch if key not in ("messages", "tools")}
            | {"own_turns": segment["own_turns"]}
            for branch, segment in zip(said["branches"], said["segments"], strict=True)
        ],
        "turns": [
            part | _content(turn) for part, turn in zip(said["turns"], rollout.turns, strict=True)
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
