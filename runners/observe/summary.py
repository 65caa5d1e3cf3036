"""What a run came to, for humans: a table on the terminal and the reward curve as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from runners.observe.dashboard import format_duration
from runners.observe.progress import Curve
from runners.processes.atomic_write import atomic_file
from runners.store.run_store import RunStore
from runners.store.store_error import to_store_error


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
    table.add_row("steps", f"{summary['steps']:,}")
    table.add_row("rollouts", f"{summary['rollouts']:,}")
    for code, count in sorted(summary["outcomes"].items(), key=lambda item: -item[1]):
        table.add_row(f"  {code}", f"{count:,}")
    table.add_row("tokens sampled", f"{summary['tokens']['sampled']:,}")
    table.add_row("tokens trained", f"{summary['tokens']['trained']:,}")
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


def held_out(store: RunStore) -> Curve:
    """Return the solve rate of each evaluation."""
    return [
        (row.step, row.result["solve_rate"])
        for row in store.evaluations()
        if row.result.get("solve_rate") is not None
    ]


def curve(store: RunStore, name: str) -> Curve:
    """Return one metric of each finished step, where it is known."""
    return [
        (row.step, row.metrics[name]) for row in store.steps() if row.metrics.get(name) is not None
    ]


def write_reward_curve(store: RunStore) -> Path | None:
    """Draw ``reward_curve.png`` in the run directory; None if there is nothing to draw."""
    rewards, rates = curve(store, "train/reward_mean"), curve(store, "train/solve_rate")
    points = held_out(store)
    if not (rewards or rates or points):
        return None
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")  # Agg, since no GUI is named
    axes = figure.add_subplot()
    axes.plot(*_columns(rates), color="#2a7de1", linewidth=2, label="training solve rate")
    axes.plot(*_columns(rewards), color="#9aa5b1", linewidth=1.5, label="training reward")
    axes.plot(*_columns(points), "D--", color="#e07b00", linewidth=1, label="held-out solve rate")
    for step, rate in points:
        axes.annotate(
            f"{rate:.0%}",
            (step, rate),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            color="#e07b00",
            fontsize=9,
        )
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.0), max(high, 1.08))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_title(store.run_dir.resolve().name, loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    path = store.run_dir / "reward_curve.png"
    try:
        with atomic_file(path) as partial:
            figure.savefig(partial, format="png")
    except OSError as error:
        raise to_store_error(error, path) from error
    return path


def _columns(points: Curve) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
