"""The list of benchmarks is whole."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.benchmarks.catalogue import BENCHMARKS
from tests.benchmarks.growth.curve import Curve

HERE = Path(__file__).parent


def test_every_program_of_the_folder_is_in_the_list_and_no_other() -> None:
    programs = {path.stem for path in HERE.glob("bench_*.py")}
    assert {shlex.split(each.command)[0] for each in BENCHMARKS} == programs
    assert len({each.name for each in BENCHMARKS}) == len(BENCHMARKS)


def test_the_exponent_of_a_curve_is_that_of_its_growth() -> None:
    sizes = (10.0, 100.0, 1000.0)
    for exponent in (0.0, 1.0, 1.5):
        points = tuple((size, 3 * size**exponent) for size in sizes)
        assert abs(Curve("a", "s", "b", 1, points).exponent - exponent) < 1e-9
    assert Curve("a", "s", "b", 1, tuple((size, 0.0) for size in sizes)).exponent == 0
