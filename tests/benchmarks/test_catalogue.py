"""The list of benchmarks is whole."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from runners.observe.export.html import NAME
from runners.observe.export.run_dump import dump
from tests.benchmarks.catalogue import BENCHMARKS
from tests.benchmarks.growth.curve import Curve
from tests.benchmarks.growth.page_opening import ROLLOUT, ROW, copy_page
from tests.fakes.records import example_run

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


def test_a_page_of_copies_has_every_rollout_under_names_of_its_own(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("html",), decode=lambda ids: "x")
    copy_page(tmp_path / NAME, 3, tmp_path / "copies.html")
    one, three = ((tmp_path / name).read_text() for name in (NAME, "copies.html"))
    names = re.findall('"rollout_id":"([^"]+)', "".join(re.findall(ROW, three)))
    assert len(names) == len(set(names)) == 3 * len(re.findall(ROLLOUT, one)) == 12
    assert re.findall('id="rollout:([^"]+)"', "".join(re.findall(ROLLOUT, three))) == names
