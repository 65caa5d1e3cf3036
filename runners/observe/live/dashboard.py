"""Shows a campaign live on stderr: a dashboard on a terminal, one line per step elsewhere.

It only reads a ``Progress``, from a thread of its own; the campaign never waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal, Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from runners.observe.adviser.alarm import Alarm
from runners.observe.console import make_console
from runners.observe.figures.curves import Curve
from runners.observe.figures.terminal_plot import AXIS, LINE, MARK, plot_rates
from runners.observe.live.progress import Progress
from runners.records.text import make_printable

_REFRESH_HZ = 4
_WIDE = 120
"""Columns from which on a value at the other end of its panel is hard to match with its name."""
_CURVE = 7
"""Rows of the smallest plot."""
_STAGES = ("queue", "session", "boot", "harness", "patch", "finish", "grade")

Mode = Literal["auto", "on", "off"]


def format_duration(seconds: float | None) -> str:
    """Return seconds as m:ss or h:mm:ss; a dash if unknown."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class LiveView:
    """Shows a campaign during its ``with`` block, then restores the terminal."""

    def __init__(
        self, progress: Progress, mode: Mode = "auto", console: Console | None = None
    ) -> None:
        self._console = console or make_console()
        shown = mode == "on" or (mode == "auto" and self._console.is_terminal)
        self._view = (
            _LiveDashboard(progress, self._console) if shown else _Log(progress, self._console)
        )

    def __enter__(self) -> Self:
        self._view.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore the terminal; may be called twice, and from a signal handler."""
        self._view.stop()


class _LiveDashboard:
    """The dashboard, redrawn by rich's refresh thread."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self._live = Live(
            get_renderable=lambda: Dashboard(progress.snapshot()),
            console=console,
            refresh_per_second=_REFRESH_HZ,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
        )

    def start(self) -> None:
        self._live.start(refresh=True)

    def stop(self) -> None:
        self._live.stop()


class _Log:
    """Prints one line per step, evaluation and note."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self._progress = progress
        self._console = console
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress-log", daemon=True)
        self._notes = 0
        self._alarms: set[str] = set()
        """Illnesses that are printed; one that comes again is printed again."""
        # Earlier executions of the run have printed their own lines.
        self._steps, self._evaluations = len(progress.rewards), len(progress.evaluations)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.wait(1 / _REFRESH_HZ):
            self._print_new()
        self._print_new()

    def _print_new(self) -> None:
        progress = self._progress.snapshot()
        for note in progress.notes_since(self._notes):
            self._line(note)
        self._notes = progress.noted
        for alarm in progress.alarms:
            if alarm.name not in self._alarms:
                self._line(f"alarm {alarm.name}: {alarm.evidence}; fix: {alarm.fix}")
        self._alarms = {alarm.name for alarm in progress.alarms}
        for step, rate in progress.evaluations[self._evaluations :]:
            name, passed = progress.passes.get(step, ("", 0.0))
            more = f"  {name} {passed:.1%}" if name else ""
            self._line(f"step {step}/{progress.steps}  held-out solve rate {rate:.1%}{more}")
        self._evaluations = len(progress.evaluations)
        for index in range(self._steps, len(progress.rewards)):
            (step, reward), (_, rate) = progress.rewards[index], progress.solve_rates[index]
            self._line(
                f"step {step}/{progress.steps}  reward {reward:.3f}  solve rate {rate:.1%}  "
                f"{progress.step_s[index]:.1f} s  left {format_duration(progress.eta_s())}"
            )
        self._steps = len(progress.rewards)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


class Dashboard:
    """Renders a ``Progress`` as large as the terminal allows."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.size.height - 1
        head, tables = 3, len(_STAGES) + 2
        texts = _describe_alarms(self._progress.alarms, 1 if height < 30 else 3)
        alarms = [line for text in texts for line in _fold(text, console, width)]
        if len(alarms) > height - head - tables - _CURVE - 1:
            alarms = [_cut(text) for text in texts]
        room = (3 if height < 30 else 6) - len(alarms)
        notes = list(self._progress.notes)[-max(room, 1) :]
        yield Constrain(self._head(), width)
        if self._progress.steps:
            yield Constrain(
                self._curve(width, max(height - head - tables - len(notes) - len(alarms), _CURVE)),
                width,
            )
        else:
            yield Constrain(self._columns(), width)
        yield Constrain(self._tables(wide=width > _WIDE), width)
        for line in alarms:
            yield Constrain(line, width)
        for note in notes:
            yield Text(f" {note}", "bright_black", no_wrap=True, overflow="ellipsis")

    def _head(self) -> RenderableType:
        progress = self._progress
        title = Text.assemble(
            (" agentrl ", "bold reverse cyan"),
            (f"  {progress.run}", "bold"),
            (f"  {progress.phase}", "cyan"),
        )
        times = Text.assemble(
            (format_duration(progress.elapsed_s), "bold"),
            (" elapsed  ", "bright_black"),
            (format_duration(progress.eta_s()), "bold"),
            (" left ", "bright_black"),
        )
        top = Table.grid(expand=True)
        top.add_column(no_wrap=True)
        top.add_column(justify="right", no_wrap=True)
        top.add_row(title, times)
        bars = Table.grid(expand=True, padding=(0, 1))
        bars.add_column(width=9, no_wrap=True)
        bars.add_column(ratio=1)
        bars.add_column(width=11, justify="right", no_wrap=True)
        if progress.steps:
            bars.add_row(" steps", *_bar(progress.step, progress.steps, "cyan"))
        bars.add_row(" rollouts", *_bar(progress.batch_done, progress.batch_size, "green"))
        return Group(top, bars)

    def _curve(self, width: int, height: int) -> RenderableType:
        progress = self._progress
        title = Text.assemble(
            ("solve rate   ", "bold"), ("━ ", LINE), f"training {_last(progress.solve_rates)}   "
        )
        title.append("◆ ", MARK)
        title.append(f"held-out {_last(progress.evaluations)}")
        picture = plot_rates(
            progress.solve_rates,
            progress.evaluations,
            steps=progress.steps,
            width=width - 4,
            height=height - 2,
        )
        return Panel(picture, title=title, title_align="left", border_style=AXIS, height=height)

    def _columns(self) -> RenderableType:
        """Return an evaluation's verdicts so far; the rate is over graded rollouts."""
        columns = self._progress.columns
        graded = columns["solved"] + columns["unsolved"]
        text = Text.assemble(
            (f" {columns['solved']:,} solved", "bold green"),
            (f"   {columns['unsolved']:,} unsolved", "bold"),
            (f"   {columns['error']:,} error", "bold yellow" if columns["error"] else AXIS),
            f"   {columns['solved'] / graded:.1%} of {graded:,} graded" if graded else "",
        )
        return Panel(text, title="results", title_align="left", border_style=AXIS)

    def _tables(self, *, wide: bool) -> RenderableType:
        progress = self._progress
        stages = {stage: progress.in_flight.get(stage, 0) for stage in _STAGES}
        ended = sum(progress.outcomes.values())
        outcomes = {
            code: f"{count:,} {count / ended:4.0%}"
            for code, count in progress.outcomes.most_common(len(_STAGES))
        }
        figures = {
            "tokens/s": f"{progress.tokens_per_s:,.0f}",
            "sampled tokens": f"{progress.sampled_tokens:,}",
            "rollouts": f"{ended:,}",
            "reward": f"{progress.rewards[-1][1]:.3f}" if progress.rewards else "-",
            "step": f"{progress.step_s[-1]:.1f} s" if progress.step_s else "-",
        }
        row = Table.grid(expand=True)
        for ratio in (3, 5, 4):
            row.add_column(ratio=ratio)
        row.add_row(
            _facts("in flight", {name: str(count) for name, count in stages.items()}, wide=wide),
            _facts("outcomes", outcomes, wide=wide),
            _facts("policy", figures, wide=wide),
        )
        return row


def _describe_alarms(alarms: Sequence[Alarm], most: int) -> list[Text]:
    """Return lines for the first ``most`` alarms, and one that names the others."""
    lines = []
    for alarm in alarms[:most]:
        texts = (f" ▲ {alarm.name}", "bold red"), f"  {make_printable(alarm.evidence)}"
        lines.append(Text.assemble(*texts))
        lines.append(Text(f"   {make_printable(alarm.fix)}", "bright_black"))
    if names := [alarm.name for alarm in alarms[most:]]:
        lines.append(Text(f" ▲ {', '.join(names)}", "red"))
    return lines


def _fold(text: Text, console: Console, width: int) -> list[Text]:
    """Return a text as lines of at most ``width`` columns, all but the first indented."""
    first, *more = text.wrap(console, width - 3)
    return [first, *(Text("   ", line.style).append_text(line) for line in more)]


def _cut(text: Text) -> Text:
    """Return a text as one line, whatever its length."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _bar(done: int, total: int, style: str) -> tuple[RenderableType, str]:
    bar = ProgressBar(
        total=max(total, 1), completed=done, complete_style=style, finished_style=style
    )
    return bar, f"{done}/{total} " if total else "- "


def _facts(title: str, facts: dict[str, str], *, wide: bool) -> Panel:
    """Return a panel of names and values; a wide one keeps each value near its name."""
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(justify="right", no_wrap=True)
    if wide:
        table.add_column(ratio=1)
    for name, value in facts.items():
        table.add_row(Text(name), Text(value, "bold" if value.strip("0-") else AXIS))
    return Panel(
        table,
        title=Text(title, "bold"),
        title_align="left",
        border_style=AXIS,
        height=len(_STAGES) + 2,
    )


def _last(curve: Curve) -> str:
    return f"{curve[-1][1]:.0%}" if curve else "-"
