"""Expand sweeps: their product in order, in Hydra's grammar."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import ConfigError
from conf.grammar import as_override, expand_sweeps, parse, swept_keys


@pytest.mark.parametrize(
    ("line", "runs"),
    [
        ("a=1,2", ["a=1", "a=2"]),
        ("a=choice(1,2)", ["a=1", "a=2"]),
        ("a=range(1,4)", ["a=1", "a=2", "a=3"]),
        ("a=range(0,1,0.5)", ["a=0.0", "a=0.5"]),
        ("a=[1,2]", ["a=[1,2]"]),
        ("a=[1,2],[3]", ["a=[1,2]", "a=[3]"]),
        ("a='1,2'", ["a='1,2'"]),
        ("a='1,2',3", ["a='1,2'", "a=3"]),
        ("+a=1,2", ["+a=1", "+a=2"]),
        ("~a", ["~a"]),
        ("engine=embedded,sglang", ["engine=embedded", "engine=sglang"]),
        ("not readable", ["not readable"]),
    ],
)
def test_a_line_becomes_one_line_per_run(line: str, runs: list[str]) -> None:
    assert expand_sweeps([line]) == [[run] for run in runs]


def test_without_a_sweep_there_is_one_run() -> None:
    assert expand_sweeps(["a=1", "b=x"]) == [["a=1", "b=x"]]
    assert expand_sweeps([]) == [[]]


axes = st.lists(
    st.lists(
        st.integers(-5, 5) | st.sampled_from(["x", "y.z", "[1,2]", "1e-3"]), min_size=1, max_size=4
    ),
    max_size=4,
)


@given(axes)
def test_sweeps_are_the_product_in_order(values: list[list[object]]) -> None:
    lines = [f"k{i}=" + ",".join(map(str, axis)) for i, axis in enumerate(values)]
    runs = expand_sweeps(lines)
    assert len(runs) == math.prod(len(axis) for axis in values)
    wanted = itertools.product(
        *[[parse([f"k{i}={v}"])[0][0].value() for v in axis] for i, axis in enumerate(values)]
    )
    assert [tuple(o.value() for o in parse(run)[0]) for run in runs] == list(wanted)
    assert swept_keys(lines) == [f"k{i}" for i, axis in enumerate(values) if len(axis) > 1]


def test_sweeps_that_cannot_be_enumerated_are_refused_together() -> None:
    with pytest.raises(ConfigError) as caught:
        expand_sweeps(["a=glob(*)", "b=interval(0,1)", "c=range(3,1)"])
    assert [fault[0] for fault in caught.value.faults] == ["a", "b", "c"]


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3),
)


@given(plain)
def test_any_plain_value_can_be_written_as_an_override(value: object) -> None:
    (override,), faults = parse([as_override("k", value)])
    assert not faults
    assert not override.is_sweep_override()
    if "$" not in str(value):  # an interpolation is unescaped by OmegaConf, after parsing
        assert override.value() == value
