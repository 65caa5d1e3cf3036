"""Show a job on a cluster while it is followed: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from conf.schema import Config
from launch.job_follower import JobStatus
from runners.observe.live import format_duration
from runners.records.text import make_printable

_OUTCOMES = 5


class JobView:
    """Shows the states of one job while its ``with`` block runs."""

    def __init__(self, config: Config, run_dir: Path, console: Console) -> None:
        mode = config.observe.dashboard
        shown = mode == "on" or (mode == "auto" and console.is_terminal)
        self._console = console
        self._title = f"job {config.launch.kind} {run_dir.name}"
        self._steps = config.run.steps
        self._started = time.monotonic()
        self._live = Live(console=console, refresh_per_second=2, transient=True) if shown else None
        self._printed: dict[str, str] = {}
        self._old_update: Any = ...
        """Time stamp of the status that existed before following began; ``...``: not read yet.

        That status was shown by an earlier follower, or belongs to an earlier start of the job.
        """

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, state: JobStatus) -> None:
        """Show the job's state; a line that has not changed is not repeated."""
        if self._old_update is ...:
            self._old_update = state.status.get("updated_at")
        if state.status.get("updated_at") == self._old_update:
            state = replace(state, status={})
        if self._live is not None:
            self._live.update(self._render(state))
            return
        for name, text in self._lines(state):
            if self._printed.get(name) != text:
                self._printed[name] = text
                self._console.print(make_printable(text), soft_wrap=True)

    def _lines(self, state: JobStatus) -> Iterator[tuple[str, str]]:
        yield "phase", state.phase
        for step, rate in state.status.get("evaluations", []):
            yield f"held-out {step}", f"held-out solve rate after {step} steps: {rate:.1%}"
        if done := state.status.get("steps_done"):
            yield "step", f"step {done}/{self._steps}  {_figures(state.status)}"

    def _render(self, state: JobStatus) -> RenderableType:
        status = state.status
        table = Table(title=Text(self._title), title_justify="left", show_header=False)
        table.add_column(style="bright_black", no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row("state", Text(make_printable(state.phase), "bold cyan"))
        table.add_row("followed for", format_duration(time.monotonic() - self._started))
        if status:
            table.add_row("steps", f"{status.get('steps_done', 0)} of {self._steps}")
            table.add_row("under way", f"{status.get('step_rollouts', 0):,} rollouts done")
            if status.get("metrics"):
                table.add_row("last step", _figures(status))
            for step, rate in status.get("evaluations", [])[-1:]:
                table.add_row(f"held-out after {step}", f"{rate:.1%}")
            for code, count in list(status.get("outcomes", {}).items())[:_OUTCOMES]:
                table.add_row(f"  {code}", f"{count:,}")
            silent_s = time.time() - float(status.get("updated_at") or 0.0)
            table.add_row("last update", f"{format_duration(max(silent_s, 0.0))} ago")
        log_line = Text(
            f" {make_printable(state.line)}", "bright_black", no_wrap=True, overflow="ellipsis"
        )
        return Group(
            table, log_line, Text(" ctrl-C stops following; the job goes on", "bright_black")
        )


def _figures(status: dict[str, Any]) -> str:
    found = status.get("metrics", {})
    names = {"reward": "train/reward_mean", "solve rate": "train/solve_rate"}
    shown = [
        f"{name} {found[key]:.3f}" for name, key in names.items() if found.get(key) is not None
    ]
    return "  ".join(shown) or "no rollout was graded"
