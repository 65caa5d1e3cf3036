"""The layout of a swimlane, which both renderers draw."""

from __future__ import annotations

from typing import Any

import pytest

from runners.observe.swimlane import AttemptSpans, Span, lay_out, name_end
from tests.fakes.records import LOST, a_rollout


def attempt(member: int, start: float, *, number: int = 0, agents: bool = False) -> AttemptSpans:
    """Return an attempt of 3 seconds with calls in its second one."""
    record = a_rollout(f"train-000001-02-{member:02}", attempt=number)
    calls = [Span("main", start + 1.0, 0.5), Span("main", start + 1.5, 0.25)]
    if agents:
        calls += [Span("subagent", start + 1.0, 1.0, f"agent-{n}") for n in (1, 2, 3)]
    stages = [Span("boot", start, 1.0), Span("harness", start + 1.0, 2.0)]
    return AttemptSpans(record, stages, calls)


def test_times_begin_with_the_first_span_and_a_retry_shares_the_lane() -> None:
    layout = lay_out([attempt(0, 1000.0), attempt(1, 1002.0), attempt(1, 1006.0, number=1)])
    assert [(label, len(attempts)) for label, attempts in layout.lanes] == [("2.0", 1), ("2.1", 2)]
    (_, (first,)), (_, (failed, retried)) = layout.lanes
    assert [(box.name, box.left, box.width) for box in first.stages] == [
        ("boot", 0.0, 1.0),
        ("harness", 1.0, 2.0),
    ]
    assert [(box.left, box.width) for box in failed.calls] == [(3.0, 0.5), (3.5, 0.25)]
    assert (retried.left, retried.right, layout.seconds) == (6.0, 9.0, 9.0)


def test_threads_that_speak_at_once_lie_below_one_another() -> None:
    (_, (laid_out,)) = lay_out([attempt(0, 5.0, agents=True)]).lanes[0]
    assert [(box.top, box.height) for box in laid_out.calls] == [
        (0.0, 0.25),
        (0.0, 0.25),
        (0.25, 0.25),
        (0.5, 0.25),
        (0.75, 0.25),
    ]


def test_without_stages_the_calls_give_the_ends() -> None:
    calls = attempt(0, 10.0).calls
    (_, (laid_out,)) = lay_out([AttemptSpans(a_rollout(), (), calls)]).lanes[0]
    assert (laid_out.left, laid_out.right) == (0.0, 0.75)
    nothing = lay_out([AttemptSpans(a_rollout(), (), ())])
    assert (nothing.seconds, nothing.shown) == (0.0, 1)


def test_of_many_attempts_those_that_ended_last_are_shown() -> None:
    layout = lay_out([attempt(member, 1000.0 - member) for member in range(5)], most=2)
    assert ([label for label, _ in layout.lanes], layout.shown) == (["2.0", "2.1"], 2)


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({}, "solved"),
        ({"solved": False}, "unsolved"),
        ({"solved": None}, "policy"),
        ({"outcome": LOST}, "infra"),
    ],
)
def test_an_attempt_without_a_grade_is_named_by_its_outcome_class(
    changes: dict[str, Any], end: str
) -> None:
    assert name_end(a_rollout(**changes)) == end
