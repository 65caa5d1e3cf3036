"""Links rollouts that a report names to the place where the report says how each is opened."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from urllib.parse import quote
from xml.etree.ElementTree import Element

from runners.export.html import NAME
from runners.report.element import Child, make
from runners.report.table import make_section, make_table

_DUMP = Path("dump") / NAME


class Links:
    """The rollouts of a run that its report names; mutated by ``to``.

    A link leads to a line of the report itself, so that it works wherever the report lies and
    whatever runs: the line has the commands, and a link into the run's dump if there is one.
    """

    def __init__(self, run_dir: Path, page: Path) -> None:
        """``page``: where the report will lie."""
        dump = (run_dir / _DUMP).resolve()
        self._dump = os.path.relpath(dump, page.resolve().parent) if dump.is_file() else None
        self._run = shlex.quote(str(run_dir))
        self._named: dict[str, None] = {}

    def to(self, rollout_id: str) -> Element:
        """Return a link to a rollout."""
        self._named[rollout_id] = None
        return make("a", make("code", rollout_id), href=f"#{quote(_anchor(rollout_id))}")

    def build(self) -> Element | None:
        """Return the section to which the links lead, once all are made; None without any."""
        if not self._named:
            return None
        rows: list[list[Child]] = [
            [
                self._to_dump(rollout_id),
                make("code", f"agentrl view {self._run} {shlex.quote(rollout_id)} --open"),
                make("code", f"agentrl rollouts {self._run} {shlex.quote(rollout_id)}"),
            ]
            for rollout_id in sorted(self._named)
        ]
        table = make_table(["rollout", "in a browser", "in a terminal"], rows)
        for line, rollout_id in zip(table.iter("tr"), ["", *sorted(self._named)], strict=True):
            if rollout_id:
                line.set("id", _anchor(rollout_id))
        dump = f"agentrl dump-trajectories {self._run} --format html"
        note = make(
            "p",
            "These commands open the rollouts that this page names. "
            + ("The names are links into the page that " if self._dump else "A page that "),
            make("code", dump),
            " wrote, as of then." if self._dump else " writes holds all of them, for any browser.",
            class_="dim",
        )
        return make_section("Open a rollout", note, table)

    def _to_dump(self, rollout_id: str) -> Element:
        name = make("code", rollout_id)
        if self._dump is None:
            return name
        return make("a", name, href=f"{quote(self._dump)}#{quote(rollout_id)}")


def _anchor(rollout_id: str) -> str:
    return f"rollout-{rollout_id}"
