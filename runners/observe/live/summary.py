"""Shows the result of a campaign as a table on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from runners.observe.figures.training_counts import GroupCounts, TokenCounts, TrainingCounts
from runners.observe.live.dashboard import format_duration


def summary_table(summary: dict[str, Any]) -> Table:
    """Return the document of ``--json`` as a table for a terminal."""
    title = Text(f"run {Path(summary['run_dir']).name}")
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bright_black")
    table.add_column(justify="right", overflow="fold")
    first, last = summary["eval"]["first"], summary["eval"]["last"]
    if first is not None:
        after = Text("" if last is None else f"{last:.1%}", "bold")
        arrow = " → " if after else ""
        table.add_row("held-out solve rate", Text.assemble(f"{first:.1%}{arrow}", after))
    if (best := summary.get("best_checkpoint")) is not None:
        table.add_row("best checkpoint", f"step {best['step']} ({best['solve_rate']:.1%})")
    table.add_row("steps", f"{summary['steps']:,}")
    table.add_row("rollouts", f"{summary['rollouts']:,}")
    for code, count in sorted(summary["outcomes"].items(), key=lambda item: -item[1]):
        table.add_row(f"  {code}", f"{count:,}")
    counts = TrainingCounts(GroupCounts(**summary["groups"]), TokenCounts(**summary["tokens"]))
    for name, value in counts.rows():
        table.add_row(name, value)
    routing = summary.get("routing")
    if routing is not None:
        native = routing["k3_native"]
        without = "" if native is None else f" ({native:.1e} without)"
        if routing["captured"] is not None:  # with routing_replay=recompute none is
            table.add_row("routing captured", f"{routing['captured']:.1%}")
        table.add_row("k3 with routing replay", f"{routing['k3']:.1e}{without}")
    table.add_row("wall time", format_duration(summary["wall_s"]))
    table.add_row("directory", Text(summary["run_dir"]))
    return table
