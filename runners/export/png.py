"""Plots: ``train-000003.png`` (``eval-…``) per step, ``steps.png`` over all of them.

A step's has a swimlane, a row per rollout and a bar per turn, above its groups side by side:
rewards, outcomes, sampled tokens by kind of segment. Spans are kept for one step at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runners.export.contract import Add, Rollout, Run
from runners.trajectory.outcome import OutcomeClass

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BRANCHES = {"main": "#3f7ae0", "subagent": "#9457cf", "compaction": "#d9822b", "side": "#2a9d8f"}
_SEGMENTS = {
    "final": "#3f7ae0",
    "wipe": "#8593a8",
    "subagent": "#9457cf",
    "compaction": "#d9822b",
    "side": "#2a9d8f",
}
_OUTCOMES = {
    "solved": "#1a8a4a",
    "unsolved": "#c8372d",
    OutcomeClass.INFRA: "#d9a72b",
    OutcomeClass.GRADER: "#b0883a",
    OutcomeClass.CANCELLED: "#9aa3b0",
    OutcomeClass.INTERNAL: "#6b4a2b",
}
"""How a rollout with a grade ended, else whose fault it is that there is none."""
_ROW_INCHES, _MOST_INCHES = 0.17, 36.0
_DPI = 110

Span = tuple[float, float, float, str]
"""Start and seconds, place in the row (0 … 1), branch."""


@dataclass(slots=True)
class _Column:
    """The sums of a group, or of a step; mutated by ``add``."""

    name: str
    rewards: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, rollout: Rollout) -> None:
        """Take in a rollout."""
        record = rollout.record
        self.outcomes[_end(rollout)] += 1
        if record.reward is not None and record.outcome.meaning.reward_counts:
            self.rewards.append(record.reward)
        for chain in rollout.chains:
            self.tokens[chain.kind] += int(chain.loss_mask.sum())

    def merged(self, name: str) -> _Column:
        """Return the sums alone, rewards as their mean."""
        mean = [float(np.mean(self.rewards))] if self.rewards else []
        return _Column(name, mean, self.outcomes, self.tokens)


@dataclass(slots=True)
class _Step:
    """What is drawn of a step; mutated by ``add``."""

    step: int
    split: str
    rows: list[tuple[str, str, list[Span]]] = field(default_factory=list)
    """Label, end, bars of each rollout."""
    groups: dict[int, _Column] = field(default_factory=dict)
    whole: _Column = field(default_factory=lambda: _Column(""))

    def add(self, rollout: Rollout) -> None:
        """Take in a rollout."""
        record = rollout.record
        self.rows.append((f"{record.group}.{record.member}", _end(rollout), _spans(rollout)))
        self.groups.setdefault(record.group, _Column(str(record.group))).add(rollout)
        self.whole.add(rollout)


@contextmanager
def png(folder: Path, run: Run) -> Iterator[Add]:
    """Draw each step as it ends, then all steps."""
    now: list[_Step] = []
    steps: list[_Column] = []

    def draw() -> None:
        (done,) = now
        _draw_step(done, folder / f"{done.split}-{done.step:06}.png", run.name)
        if done.split == "train":
            steps.append(done.whole.merged(str(done.step)))
        now.clear()

    def add(rollout: Rollout) -> None:
        record = rollout.record
        if now and (now[0].step, now[0].split) != (record.step, record.split):
            draw()
        if not now:
            now.append(_Step(record.step, record.split))
        now[0].add(rollout)

    yield add
    if now:
        draw()
    if len(steps) > 1:
        _draw_steps(steps, folder / "steps.png", run.name)


def _end(rollout: Rollout) -> str:
    record = rollout.record
    if record.solved is None or not record.outcome.meaning.reward_counts:
        return str(record.outcome.code.outcome_class)
    return "solved" if record.solved else "unsolved"


def _spans(rollout: Rollout) -> list[Span]:
    """Return the bars of a rollout, threads one below the other within its row."""
    lanes = list(dict.fromkeys(turn.thread for turn in rollout.turns))
    return [
        (turn.started_at, turn.total_s, lanes.index(turn.thread) / len(lanes), turn.branch)
        for turn in rollout.turns
    ]


def _draw_step(step: _Step, path: Path, run: str) -> None:
    from matplotlib.figure import Figure

    lane_inches = max(1.2, min(_MOST_INCHES, len(step.rows) * _ROW_INCHES))
    heights = [lane_inches, 1.3, 1.3, 1.3]
    figure = Figure(figsize=(12, sum(heights) + 2.6), layout="constrained")
    lanes, *plots = figure.subplots(4, 1, gridspec_kw={"height_ratios": heights})
    figure.suptitle(
        f"{run} · {step.split} step {step.step} · {len(step.rows)} rollouts", fontsize=12
    )
    _swimlane(lanes, step)
    _stacked(plots, list(step.groups.values()), "group")
    figure.savefig(path, dpi=_DPI)


def _draw_steps(steps: Sequence[_Column], path: Path, run: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7.5), layout="constrained")
    figure.suptitle(f"{run} · {len(steps)} training steps", fontsize=12)
    _stacked(list(figure.subplots(3, 1)), steps, "step")
    figure.savefig(path, dpi=_DPI)


def _swimlane(axes: Axes, step: _Step) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    start = min((span[0] for _, _, spans in step.rows for span in spans), default=0.0)
    boxes: dict[str, list[list[tuple[float, float]]]] = {}
    rails, ends = [], []
    for row, (_, end, spans) in enumerate(step.rows):
        last = max((at + seconds for at, seconds, _, _ in spans), default=start) - start
        first = min((at for at, _, _, _ in spans), default=start) - start
        rails.append([(first, float(row)), (last, float(row))])
        ends.append((last, row, _OUTCOMES[end]))
        thick = 0.78 / max(1, len({place for _, _, place, _ in spans}))
        for at, seconds, place, branch in spans:
            left, right, top = at - start, at - start + seconds, row - 0.39 + 0.78 * place
            corners = [(left, top), (right, top), (right, top + thick), (left, top + thick)]
            boxes.setdefault(branch, []).append(corners)
    axes.add_collection(LineCollection(rails, colors="#c5ccd6", linewidths=0.8, zorder=1))
    for branch, colour in _BRANCHES.items():
        if branch in boxes:
            bars = PolyCollection(
                boxes[branch], facecolors=colour, edgecolors="white", linewidths=0.4, zorder=2
            )
            bars.set_label(branch)
            axes.add_collection(bars)
    for name, colour in _OUTCOMES.items():
        marks = np.array([(x, y) for x, y, is_colour in ends if is_colour == colour])
        if len(marks):
            axes.scatter(marks[:, 0], marks[:, 1], s=16, c=colour, label=name, zorder=3)
    axes.set_ylim(len(step.rows) - 0.4, -0.6)
    every = max(1, len(step.rows) // 60)
    axes.set_yticks(range(0, len(step.rows), every))
    axes.set_yticklabels([label for label, _, _ in step.rows][::every], fontsize=7)
    axes.set_ylabel("group.member")
    axes.set_xlabel("seconds since the first turn")
    axes.set_xlim(left=-0.01 * max((x for x, _, _ in ends), default=1.0))
    axes.margins(x=0.02)
    _finish(axes)


def _stacked(plots: Sequence[Axes], columns: Sequence[_Column], of: str) -> None:
    rewards, outcomes, tokens = plots
    at = np.arange(len(columns))
    means = [float(np.mean(c.rewards)) if c.rewards else np.nan for c in columns]
    line = "o-" if of == "step" else "o"  # groups are no course
    rewards.plot(at, means, line, color="#3f7ae0", markersize=6, linewidth=1.2, label="mean")
    if any(len(column.rewards) > 1 for column in columns):
        dots = np.array([(x, value) for x, c in enumerate(columns) for value in c.rewards])
        rewards.scatter(dots[:, 0], dots[:, 1], s=12, color="#8593a8", alpha=0.6, label="rollout")
    rewards.set_ylabel("reward")
    rewards.margins(y=0.15)
    _bars(outcomes, [column.outcomes for column in columns], _OUTCOMES)
    outcomes.set_ylabel("rollouts")
    _bars(tokens, [column.tokens for column in columns], _SEGMENTS)
    tokens.set_ylabel("sampled tokens")
    every = max(1, len(columns) // 40)
    for axes in plots:
        axes.set_xlim(-0.6, len(columns) - 0.4)
        axes.set_xticks(at[::every])
        axes.set_xticklabels([column.name for column in columns][::every], fontsize=8)
        _finish(axes)
    tokens.set_xlabel(of)


def _bars(axes: Axes, counts: Sequence[Counter[str]], colours: dict[str, str]) -> None:
    below, width = np.zeros(len(counts)), 0.7 * min(1.0, len(counts) / 8)
    for name, colour in colours.items():
        heights = np.array([count[name] for count in counts], np.float64)
        if heights.any():
            at = np.arange(len(counts))
            axes.bar(at, heights, width, bottom=below, color=colour, label=str(name))
            below += heights


def _finish(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#e6e9ee", linewidth=0.6)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
