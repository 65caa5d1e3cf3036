"""The bounds of a request: shape of its JSON, what its session has in flight."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.gateway.refusal import OverLimit, RefusalKind
from runners.gateway.request_limits import SessionBudget, check_json_shape
from tests.fakes.running_gateway import make_limits

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\[]{},é', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("k[,", max_size=3), inner, max_size=4)
    ),
    max_leaves=40,
)


def depth_of(value: object) -> int:
    """Return how deep a value is nested."""
    match value:
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case list():
            return 1 + max(map(depth_of, value), default=0)
    return 0


@given(JSON)
def test_the_depth_is_that_of_the_parsed_text(value: object) -> None:
    body = json.dumps(value).encode()
    found = depth_of([[value]])
    limits = make_limits(json_depth=16)
    wrapped = b"[" * 15 + body + b"]" * 15
    if 15 + depth_of(value) > 16:
        with pytest.raises(OverLimit, match=f"nested {15 + depth_of(value)} deep"):
            check_json_shape(wrapped, limits)
    else:
        check_json_shape(wrapped, limits)
    assert found >= 2


def test_brackets_and_commas_in_strings_are_not_counted() -> None:
    text = json.dumps({"text": '[{,"\\' * 5000}).encode()
    check_json_shape(text, make_limits(json_values=100))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * 1_000_000, "nested 1000000 deep: at most 100"),
        (b'{"a":' * 500_000, "nested 500000 deep"),
        (b"[" + b"[]," * 400_000 + b"1]", "has 800001 values: at most 200000"),
        (b"[" + b"1," * 400_000 + b"1]", "has 400001 values"),
        (b'["' + b"\\" * 999_999 + b'",' + b"[" * 200, "nested"),
    ],
    ids=["lists", "objects", "empty lists", "numbers", "backslashes"],
)
def test_deep_and_large_json_is_refused_before_it_is_parsed(body: bytes, message: str) -> None:
    with pytest.raises(OverLimit, match=re.escape(message)) as refused:
        check_json_shape(body, make_limits())
    assert refused.value.kind is RefusalKind.INVALID


def test_a_session_has_a_number_of_requests_at_once() -> None:
    budget = SessionBudget(make_limits(requests=2))
    with budget.request(), budget.request():
        with pytest.raises(OverLimit, match="2 requests in flight") as refused, budget.request():
            pass
        assert refused.value.kind is RefusalKind.RATE_LIMITED
        assert refused.value.retry_after_s == 1
    with budget.request(), budget.request():
        pass


def test_a_session_has_a_size_of_requests_at_once() -> None:
    budget = SessionBudget(make_limits(requests_mb=1))
    with budget.request() as one, budget.request() as two:
        one.grow(700_000)
        with pytest.raises(OverLimit, match="exceed 1 MB together"):
            two.grow(700_000)
        two.grow(300_000)
        two.grow(300_000)  # counted once
    with budget.request() as three:
        three.grow(1 << 20)
