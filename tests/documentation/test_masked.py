"""The section "why was my rollout masked?" knows every outcome and every reason of the code."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from runners.records.graph import DropReason
from runners.records.outcome import MEANING, OutcomeClass, OutcomeCode
from tests.documentation.site import DOCS
from tests.fakes.metrics_page import documented_metrics

HEADING = "## Why was my rollout masked?"
PAGE = (DOCS / "metrics.md").read_text("utf-8").partition(HEADING)[2]


def rows(heading: str) -> dict[str, list[str]]:
    """Return the cells of a section's table after the first, by the first."""
    section = re.split(r"^### ", PAGE, flags=re.M)
    (text,) = (each for each in section if each.startswith(heading))
    cells = [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_outcome_is_on_the_page_in_the_order_of_the_code() -> None:
    assert list(rows("No reward, by outcome")) == [code.value for code in OutcomeCode]


@pytest.mark.parametrize("code", OutcomeCode)
def test_the_page_says_whether_an_outcome_is_masked(code: OutcomeCode) -> None:
    masked = rows("No reward, by outcome")[code.value][1]
    if code.outcome_class is OutcomeClass.BUDGET:
        assert masked in ("only with `trainer.train_unfinished=false`", "the same")
    else:
        expected = "no" if MEANING[code.outcome_class].trained else "yes"
        assert masked.partition(":")[0] == expected


def test_every_reason_to_drop_a_segment_is_on_the_page() -> None:
    assert set(get_args(DropReason)) <= set(rows("An advantage and untrained tokens"))


@pytest.mark.parametrize("event", ["unbuilt", "routing_refused"])
def test_every_event_that_masks_a_rollout_is_on_the_page(event: str) -> None:
    assert event in rows("An advantage and untrained tokens")


def test_the_page_names_metrics_that_exist() -> None:
    named = set(re.findall(r"`((?:rollout|fanout|policy|tokens|r3|train)/[\w@]+)`", PAGE))
    assert named <= documented_metrics()
    counted = ("fanout/dropped", "fanout/untrained", "fanout/cut")
    assert {name for name in documented_metrics() if name.startswith(counted)} <= named
