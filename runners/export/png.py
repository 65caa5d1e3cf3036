"""Writes plots: ``train-000003.png`` (``eval-…``) per step, ``steps.png`` over all of them.

A step's plot has a swimlane (a row per rollout, a bar per turn) above its groups side by side:
rewards, outcomes, sampled tokens by kind of segment. The sums are those of the exported rollouts,
which filters may have chosen; the curves of a whole run are in its report. Spans are kept for one
step at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from runners.export.contract import AddRollout, ExportedRollout, ExportedRun
from runners.observe.png_charts import END_COLOURS, HATCH, draw_swimlane, style_axes
from runners.observe.swimlane import AttemptSpans, Span, lay_out, name_end, without_texts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SEGMENTS = {
    "final": "#3f7ae0",
    "wipe": "#8593a8",
    "subagent": "#9457cf",
    "compaction": "#d9822b",
    "side": "#2a9d8f",
}
_ROW_INCHES, _MOST_INCHES = 0.17, 36.0
_DPI = 110


@dataclass(slots=True)
class _Column:
    """The sums of a group, or of a step; mutated by ``add``."""

    name: str
    rewards: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    """Sampled tokens by kind of their chain, without those of ``masked``."""
    masked: Counter[str] = field(default_factory=Counter)
    """Those that are not in the loss."""

    def add(self, rollout: ExportedRollout) -> None:
        """Add a rollout."""
        record = rollout.record
        self.outcomes[name_end(record)] += 1
        if record.reward is not None and record.outcome.meaning.reward_counts:
            self.rewards.append(record.reward)
        for chain, segment in zip(rollout.chains, rollout.trajectory["segments"], strict=True):
            counts = self.tokens if segment["masked"] is None else self.masked
            counts[chain.kind] += int(chain.loss_mask.sum())

    def merged(self, name: str) -> _Column:
        """Return the same sums, with the rewards reduced to their mean."""
        mean = [float(np.mean(self.rewards))] if self.rewards else []
        return _Column(name, mean, self.outcomes, self.tokens, self.masked)


@dataclass(slots=True)
class _Step:
    """Data of one step's plot; mutated by ``add``."""

    step: int
    split: str
    attempts: list[AttemptSpans] = field(default_factory=list)
    groups: dict[int, _Column] = field(default_factory=dict)
    whole: _Column = field(default_factory=lambda: _Column(""))

    def add(self, rollout: ExportedRollout) -> None:
        """Add a rollout."""
        record = rollout.record
        segments = rollout.trajectory["segments"]
        masked = {part["index"] for part in segments if part["masked"] is not None}
        calls = [
            Span(
                turn.branch,
                turn.started_at,
                turn.total_s,
                turn.thread,
                masked=turn.segment in masked,
                cut=turn.finish_reason != "stop",
            )
            for turn in rollout.turns
        ]
        self.attempts.append(AttemptSpans(without_texts(record), stages=(), calls=calls))
        self.groups.setdefault(record.group, _Column(str(record.group))).add(rollout)
        self.whole.add(rollout)


@contextmanager
def write_png(folder: Path, run: ExportedRun) -> Iterator[AddRollout]:
    """Draw each step as it ends, then all steps."""
    now: list[_Step] = []
    steps: list[_Column] = []

    def draw() -> None:
        (done,) = now
        _draw_step(done, folder / f"{done.split}-{done.step:06}.png", run.name)
        if done.split == "train":
            steps.append(done.whole.merged(str(done.step)))
        now.clear()

    def add(rollout: ExportedRollout) -> None:
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


def _draw_step(step: _Step, path: Path, run: str) -> None:
    from matplotlib.figure import Figure

    lane_inches = max(1.2, min(_MOST_INCHES, len(step.attempts) * _ROW_INCHES))
    heights = [lane_inches, 1.3, 1.3, 1.3]
    figure = Figure(figsize=(12, sum(heights) + 2.6), layout="constrained")
    lanes, *plots = figure.subplots(4, 1, gridspec_kw={"height_ratios": heights})
    figure.suptitle(
        f"{run} · {step.split} step {step.step} · {len(step.attempts)} rollouts", fontsize=12
    )
    draw_swimlane(lanes, lay_out(step.attempts))
    _stacked(plots, list(step.groups.values()), "group")
    figure.savefig(path, dpi=_DPI)


def _draw_steps(steps: Sequence[_Column], path: Path, run: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7.5), layout="constrained")
    figure.suptitle(f"{run} · {len(steps)} training steps", fontsize=12)
    _stacked(list(figure.subplots(3, 1)), steps, "step")
    figure.savefig(path, dpi=_DPI)


def _stacked(plots: Sequence[Axes], columns: Sequence[_Column], of: str) -> None:
    rewards, outcomes, tokens = plots
    at = np.arange(len(columns))
    means = [float(np.mean(c.rewards)) if c.rewards else np.nan for c in columns]
    line = "o-" if of == "step" else "o"  # groups have no order that a line could show
    rewards.plot(at, means, line, color="#3f7ae0", markersize=6, linewidth=1.2, label="mean")
    if any(len(column.rewards) > 1 for column in columns):
        dots = np.array([(x, value) for x, c in enumerate(columns) for value in c.rewards])
        rewards.scatter(dots[:, 0], dots[:, 1], s=12, color="#8593a8", alpha=0.6, label="rollout")
    rewards.set_ylabel("reward")
    rewards.margins(y=0.15)
    below = np.zeros(len(columns))
    _bars(outcomes, [column.outcomes for column in columns], END_COLOURS, below)
    outcomes.set_ylabel("rollouts")
    below = np.zeros(len(columns))
    _bars(tokens, [column.tokens for column in columns], _SEGMENTS, below)
    _bars(tokens, [column.masked for column in columns], _SEGMENTS, below, masked=True)
    tokens.set_ylabel("sampled tokens")
    every = max(1, len(columns) // 40)
    for axes in plots:
        axes.set_xlim(-0.6, len(columns) - 0.4)
        axes.set_xticks(at[::every])
        axes.set_xticklabels([column.name for column in columns][::every], fontsize=8)
        style_axes(axes)
    tokens.set_xlabel(of)


def _bars(
    axes: Axes,
    counts: Sequence[Counter[str]],
    colours: dict[str, str],
    below: NDArray[np.float64],
    *,
    masked: bool = False,
) -> None:
    """Stack bars on ``below``, which grows by them; hatch what is masked."""
    width = 0.7 * min(1.0, len(counts) / 8)
    for name, colour in colours.items():
        heights = np.array([count[name] for count in counts], np.float64)
        if heights.any():
            label = f"{name}, not in the loss" if masked else name
            bars = axes.bar(
                np.arange(len(counts)), heights, width, bottom=below, color=colour, label=label
            )
            if masked:
                for bar in bars:
                    bar.set(hatch=HATCH, edgecolor="white", linewidth=0.0)
            below += heights
