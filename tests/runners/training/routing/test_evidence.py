"""Neither a few rows nor dependent healthy rows are evidence; the interval is the worst."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.training.routing.evidence import ALTERNATIVES, CERTAINTY, pool_rows, scan_rows

LIMIT = 0.05


@given(st.lists(st.sampled_from([0.0, 0.125, 0.5, 1.0]), max_size=12))
def test_the_scan_finds_the_best_of_all_intervals(values: list[float]) -> None:
    shares, best = np.array(values, np.float64), 0.0
    for place in ALTERNATIVES:
        rate = LIMIT + place * (1 - LIMIT)
        gain = shares * log(rate / LIMIT) + (1 - shares) * log((1 - rate) / (1 - LIMIT))
        for start in range(len(values)):
            for stop in range(start + 1, len(values) + 1):
                best = max(best, float(gain[start:stop].sum()))
    found = scan_rows(shares, LIMIT)
    assert found.evidence == pytest.approx(best)
    assert found.evidence == 0.0 or found.start < found.stop


def test_the_interval_is_where_the_rows_differ() -> None:
    shares = np.zeros(300)
    shares[100:140] = 0.9
    found = scan_rows(shares, LIMIT)
    assert found.evidence > CERTAINTY
    assert (found.start, found.stop) == (100, 140)


@pytest.mark.parametrize(("share", "rows"), [(0.9, 10), (0.5, 25), (0.125, 400)])
def test_too_few_rows_are_no_evidence_and_twice_as_many_are(share: float, rows: int) -> None:
    for count, alarmed in ((rows, False), (2 * rows, True)):
        assert (scan_rows(np.full(count, share), LIMIT).evidence > CERTAINTY) == alarmed
        assert (pool_rows(share, count, LIMIT) > CERTAINTY) == alarmed


def test_healthy_rows_that_come_in_bursts_raise_no_alarm_in_200_steps_of_10000() -> None:
    """Rows depend on each other: a token that is close to a tie comes again and again."""
    rng, most = np.random.default_rng(0), 0.0
    for _ in range(200):
        starts = rng.random(10_000) < 0.005
        bursts = np.convolve(starts, np.ones(4))[:10_000] > 0  # of four rows, half wrong each
        shares = np.where(bursts, 0.5, rng.choice([0.0, 0.125], 10_000, p=[0.8, 0.2]))
        assert 0.03 < shares.mean() < LIMIT
        most = max(most, scan_rows(shares, LIMIT).evidence)
        assert pool_rows(float(shares.mean()), len(shares), LIMIT) == 0.0
    assert most < CERTAINTY


@given(st.floats(0.0, 1.0), st.integers(0, 10_000), st.floats(0.001, 1.0))
def test_a_share_up_to_the_limit_is_no_evidence_and_more_is_more(
    share: float, rows: int, limit: float
) -> None:
    evidence = pool_rows(share, rows, limit)
    assert evidence >= 0.0
    assert pool_rows(share, rows + 1, limit) >= evidence
    if share <= limit:
        assert evidence == 0.0
    assert scan_rows(np.ones(5), 1.0).evidence == 0.0, "a limit of 1 alarms never"
