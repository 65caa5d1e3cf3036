"""The live view fits the terminal, shows the progress, and restores the terminal."""

from __future__ import annotations

import io
import re
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from runners.observe.adviser.alarm import Alarm
from runners.observe.figures.terminal_plot import plot_rates
from runners.observe.live.dashboard import Dashboard, LiveView, format_duration
from runners.observe.live.progress import Progress

RISING = [(step, step / 10) for step in range(11)]


def a_progress() -> Progress:
    progress = Progress("20260101-linear", 40)
    progress.add_evaluation(0, 0.31)
    for step in range(1, 13):
        progress.begin_phase("rollouts", 64)
        progress.add_step(step, 0.2 + step / 50, 0.3 + step / 50, 7.0)
    progress.in_flight["harness"] = 9
    for _ in range(17):
        progress.add_rollout("policy.finished", 200)
    progress.add_rollout("infra.sandbox_lost", 0)
    for number in range(9):
        progress.add_note(f"note {number} [with] {'long text ' * 20}")
    return progress


def picture(progress: Progress, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    with console.capture() as capture:
        console.print(Dashboard(progress))
    return capture.get().splitlines()


@pytest.mark.parametrize(
    ("width", "height"), [(80, 24), (120, 40), (60, 24), (200, 60), (80, 50), (100, 30)]
)
def test_the_dashboard_fits_the_terminal_and_shows_everything(width: int, height: int) -> None:
    lines = picture(a_progress(), width, height)
    text = "\n".join(lines)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    for part in ("12/40", "18/64", "training 54%", "held-out 31%", "note 8 [with]", "3,400"):
        assert part in text
    assert any("harness" in line and " 9 " in line for line in lines)
    assert "◆" in "".join(line for line in lines if "┤" in line or "│" in line)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_dashboard_shows_alarms_and_still_fits(width: int, height: int) -> None:
    progress = a_progress()
    progress.alarms = [
        Alarm(name, f"37 of 61 [attempts] failed in steps 4 to 5{' and on' * 20}", "lower it")
        for name in ("abort_storm", "dead_grader", "flat_groups", "truncation")
    ]
    lines = picture(progress, width, height)
    text = "\n".join(lines)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    for part in ("▲ abort_storm  37 of 61 [attempts]", "   lower it", "truncation", "12/40"):
        assert part in text


def test_an_alarm_is_read_to_its_end_where_there_is_room() -> None:
    progress = a_progress()
    evidence = "16 of 16 (100 %) rollouts ran out of a budget in steps 1 to 2, 16 of budget.tokens"
    fix = "raise sampling.max_new_tokens, harness.max_tokens, or the window of a compact scenario"
    progress.alarms = [Alarm("truncation", evidence, fix)]
    lines = picture(progress, 80, 30)
    text = re.sub(r"\s+", " ", " ".join(lines))
    assert len(lines) < 30
    assert max(map(len, lines)) <= 80
    assert f"▲ truncation {evidence} {fix}" in text
    small = picture(progress, 80, 24)
    assert len(small) < 24
    assert "…" in next(line for line in small if "▲" in line), "one line for each"


def test_an_alarm_is_printed_when_it_comes_and_again_when_it_comes_again() -> None:
    progress, file = a_progress(), io.StringIO()
    alarm = Alarm("flat_groups", "8 of 8 (100 %) groups", "raise sampling.temperature")
    view = LiveView(progress, "off", Console(file=file, width=80))
    for alarms in ([alarm], [alarm], [], [alarm]):
        progress.alarms = alarms
        view._view._print_new()  # type: ignore[union-attr]  # its thread would need time
    assert file.getvalue().count("alarm flat_groups: 8 of 8 (100 %) groups; fix: raise") == 2


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 30)])
def test_the_dashboard_uses_the_width_there_is(
    width: int, height: int, request: pytest.FixtureRequest
) -> None:
    lines = [line.rstrip() for line in picture(a_progress(), width, height)]
    assert max(map(len, lines)) == width
    assert all(len(line) == width for line in lines if line[:1] in "╭│╰")
    golden = Path(__file__).parent / "golden" / f"dashboard_{width}.txt"
    text = re.sub(r"\d+:\d\d elapsed|[\d,]+(?= │)", "N", "\n".join(lines)) + "\n"
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, "utf-8")
    assert golden.read_text("utf-8") == text


def test_the_dashboard_of_a_run_that_has_not_begun_is_whole() -> None:
    lines = picture(Progress("run", 0), 80, 24)
    assert "starting" in lines[0]
    assert len(lines) < 24


def test_an_evaluation_shows_its_rate_over_what_was_graded() -> None:
    progress = Progress("run", 0)
    progress.begin_phase("rollouts", 40)
    progress.columns.update(solved=6, unsolved=2, error=4)
    lines = picture(progress, 80, 24)
    text = "\n".join(lines)
    assert len(lines) < 24
    for part in ("6 solved", "2 unsolved", "4 error", "75.0% of 8 graded"):
        assert part in text
    assert " steps" not in text


def test_a_rising_curve_rises() -> None:
    rows = plot_rates(RISING, [], steps=10, width=46, height=12).plain.splitlines()
    assert len(rows) == 12
    drawn = [
        [column for column, char in enumerate(row[6:]) if "\u2800" < char <= "\u28ff"]
        for row in rows[:-2]
    ]
    assert all(drawn)
    assert all(max(lower) <= min(upper) + 1 for upper, lower in pairwise(drawn))


def test_a_point_is_marked_at_its_rate() -> None:
    rows = plot_rates([], [(0, 0.0), (10, 1.0)], steps=10, width=46, height=12).plain.splitlines()
    assert rows[0].startswith(" 100%┤")
    assert rows[0].endswith("◆")
    assert rows[9].startswith("   0%┤◆")
    assert [row.count("◆") for row in rows].count(1) == 2


def test_the_middle_of_the_axis_stands_below_its_point() -> None:
    rows = plot_rates([], [(1, 0.0)], steps=3, width=46, height=12).plain.splitlines()
    assert rows[9].index("◆") == rows[11].index("1")


def test_rates_out_of_range_stay_inside_the_plot() -> None:
    rows = plot_rates([(0, -3.0), (99, 7.0)], [], steps=10, width=46, height=8).plain.splitlines()
    assert len(rows) == 8
    assert max(map(len, rows)) == 46


def test_without_a_terminal_each_step_is_one_line() -> None:
    out = io.StringIO()
    progress = Progress("run", 3)
    with LiveView(progress, "auto", Console(file=out, width=40)):
        progress.add_note("sandbox [bold]: bubblewrap")
        progress.add_evaluation_result(0, {"solve_rate": 0.25, "pass@2": 0.5, "pass@4": 0.75})
        progress.add_step(1, 0.5, 0.375, 2.0)
        progress.add_step(2, 0.625, 0.5, 4.0)
    assert out.getvalue().splitlines() == [
        "sandbox [bold]: bubblewrap",
        "step 0/3  held-out solve rate 25.0%  pass@4 75.0%",
        "step 1/3  reward 0.500  solve rate 37.5%  2.0 s  left 0:03",
        "step 2/3  reward 0.625  solve rate 50.0%  4.0 s  left 0:03",
    ]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_terminal_is_restored_whatever_happens(error: type[BaseException]) -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, height=24, force_terminal=True)
    view = LiveView(a_progress(), "auto", console)
    with pytest.raises(error), view:
        raise error
    assert "12/40" in out.getvalue()
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")
    written = out.getvalue()
    view.close()
    assert out.getvalue() == written


def test_the_view_can_be_switched_off_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, height=24, force_terminal=True)
    with LiveView(Progress("run", 1), "off", console):
        pass
    assert out.getvalue() == ""


def test_durations_read_like_a_clock() -> None:
    assert [format_duration(s) for s in (None, 0, 59.6, 3599, 3600, 36_610)] == [
        "-",
        "0:00",
        "1:00",
        "59:59",
        "1:00:00",
        "10:10:10",
    ]
