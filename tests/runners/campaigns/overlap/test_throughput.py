"""What asynchrony is worth, in virtual time: the figures of ``bench_overlap`` on one seed."""

from __future__ import annotations

from functools import cache

import pytest

from tests.benchmarks.bench_overlap import ROWS, Figures, compare


@cache
def figures() -> dict[str, Figures]:
    """Figures of all rules for batches of eight groups."""
    return compare(8, [0], 100)


@pytest.mark.integration
def test_stream_is_two_and_a_half_times_as_fast_at_a_mean_staleness_of_one() -> None:
    found = figures()["stream w=1 η=4"]
    assert found.speed_up >= 2.5
    assert found.mean_staleness <= 1.05
    assert found.max_staleness == 4


def test_our_rules_lose_no_work_and_leave_no_slow_task_out() -> None:
    ours = [row.name for row in ROWS if row.name.startswith(("none", "step", "stream"))]
    assert [figures()[name].lost for name in ours] == [0.0] * len(ours)
    assert min(figures()[name].slow_share for name in ours) >= 0.97


@pytest.mark.parametrize("name", ["drop stale η=1", "drop stale η=2", "drop tail 1.25"])
def test_the_world_would_show_lost_work_and_slow_tasks_left_out(name: str) -> None:
    assert figures()[name].lost > 0.2
    assert figures()[name].slow_share < 0.6


def test_a_window_as_wide_as_the_staleness_trains_the_groups_as_they_were_dealt() -> None:
    assert figures()["stream w=1 η=1"].speed_up == pytest.approx(figures()["dealt η=1"].speed_up)
    assert figures()["dealt η=0"].speed_up == pytest.approx(1.0)
