"""Draws curves and swimlanes with matplotlib, which is imported late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runners.observe.curves import Curve, RunCurves, read_curves
from runners.observe.swimlane import Swimlane, name_end
from runners.processes.atomic_write import atomic_file
from runners.store.run_store import RunStore
from runners.store.store_error import raise_store_errors
from runners.trajectory.outcome import OutcomeClass

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BRANCH_COLOURS = {
    "main": "#3f7ae0",
    "subagent": "#9457cf",
    "compaction": "#d9822b",
    "side": "#2a9d8f",
}
END_COLOURS = {
    "solved": "#1a8a4a",
    "unsolved": "#c8372d",
    OutcomeClass.INFRA.value: "#d9a72b",
    OutcomeClass.GRADER.value: "#b0883a",
    OutcomeClass.CANCELLED.value: "#9aa3b0",
    OutcomeClass.INTERNAL.value: "#6b4a2b",
}
"""By ``name_end``."""
HATCH = "/////"
"""Of what is not in the loss."""
_HELD_OUT, _RAIL, _CUT = "#e07b00", "#c5ccd6", "#c8372d"
_LANE_HEIGHT = 0.78
"""Part of a row that bars fill; the rest keeps rows apart."""
_MOST_LABELS = 60


def write_reward_curve(store: RunStore) -> Path | None:
    """Draw ``reward_curve.png`` in the run directory; None if there is nothing to draw."""
    curves = read_curves(store)
    if not curves:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")  # Agg, since no GUI is named
    axes = figure.add_subplot()
    _draw_reward_curve(axes, curves)
    axes.set_title(store.run_dir.resolve().name, loc="left", fontsize=11)
    path = store.run_dir / "reward_curve.png"
    with raise_store_errors(path), atomic_file(path) as partial:
        figure.savefig(partial, format="png")
    return path


def _draw_reward_curve(axes: Axes, curves: RunCurves) -> None:
    from matplotlib.ticker import MaxNLocator

    def columns(curve: Curve) -> tuple[list[int], list[float]]:
        return [step for step, _ in curve], [value for _, value in curve]

    axes.plot(
        *columns(curves.solve_rates), color="#2a7de1", linewidth=2, label="training solve rate"
    )
    axes.plot(*columns(curves.rewards), color="#9aa5b1", linewidth=1.5, label="training reward")
    axes.plot(
        *columns(curves.evaluations),
        "D--",
        color=_HELD_OUT,
        linewidth=1,
        label="held-out solve rate",
    )
    for step, rate in curves.evaluations:
        axes.annotate(
            f"{rate:.0%}",
            (step, rate),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=_HELD_OUT,
        )
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.0), max(high, 1.08))  # rates are up to 1; their labels lie above
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)


def draw_swimlane(axes: Axes, swimlane: Swimlane) -> None:
    """Draw a row per rollout: a rail over its time, a bar per model call, a dot for its end.

    A call whose tokens are not in the loss is hatched; one that was cut off ends with a red line.
    """
    from matplotlib.collections import LineCollection, PolyCollection

    rails: list[list[tuple[float, float]]] = []
    boxes: dict[str, list[list[tuple[float, float]]]] = {}
    masked: list[list[tuple[float, float]]] = []
    cuts: list[list[tuple[float, float]]] = []
    ends: dict[str, list[tuple[float, float]]] = {}
    for row, (_, attempts) in enumerate(swimlane.lanes):
        for attempt in attempts:
            rails.append([(attempt.left, float(row)), (attempt.right, float(row))])
            ends.setdefault(name_end(attempt.spans.record), []).append((attempt.right, row))
            for box in attempt.calls:
                left, right = box.left, box.left + box.width
                top = row + _LANE_HEIGHT * (box.top - 0.5)
                bottom = top + _LANE_HEIGHT * box.height
                corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
                boxes.setdefault(box.name, []).append(corners)
                if box.masked:
                    masked.append(corners)
                if box.cut:
                    cuts.append([(right, top), (right, bottom)])
    axes.add_collection(LineCollection(rails, colors=_RAIL, linewidths=0.8, zorder=1))
    for branch, colour in BRANCH_COLOURS.items():
        if branch in boxes:
            bars = PolyCollection(
                boxes[branch], facecolors=colour, edgecolors="white", linewidths=0.4, zorder=2
            )
            bars.set_label(branch)
            axes.add_collection(bars)
    if masked:
        hatched = PolyCollection(masked, facecolors="none", edgecolors="white", zorder=2.2)
        hatched.set(hatch=HATCH, linewidth=0.0)
        axes.add_collection(hatched)
    if cuts:
        ticks = LineCollection(cuts, colors=_CUT, linewidths=2.2, zorder=2.5)
        ticks.set_label("cut off")
        axes.add_collection(ticks)
    for name, colour in END_COLOURS.items():
        if name in ends:
            across, along = zip(*ends[name], strict=True)
            axes.scatter(across, along, s=16, c=colour, label=name, zorder=3)
    labels = [label for label, _ in swimlane.lanes]
    every = max(1, len(labels) // _MOST_LABELS)
    axes.set_ylim(len(labels) - 0.4, -0.6)  # the first rollout on top
    axes.set_yticks(range(0, len(labels), every))
    axes.set_yticklabels(labels[::every], fontsize=7)
    axes.set_ylabel("group.member")
    axes.set_xlabel("seconds since the first turn")
    axes.set_xlim(left=-0.01 * (swimlane.seconds or 1.0))
    axes.margins(x=0.02)
    style_axes(axes)


def style_axes(axes: Axes) -> None:
    """Give a plot its grid and, if it has labels, a legend to its right."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#e6e9ee", linewidth=0.6)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
