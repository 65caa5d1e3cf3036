"""Changed tests: a right solution fails negations and passes rewordings, whatever is drawn."""

from __future__ import annotations

import ast
import random
import textwrap
import unittest
from typing import Any

import pytest

from runners.tasks.grading.canaries.literals import is_literal, literal_family, respell
from runners.tasks.grading.canaries.negated_tests import (
    draw_family,
    end_negation,
    find_negations,
    find_program_negations,
)
from runners.tasks.grading.canaries.rewordings import reword
from runners.tasks.grading.canaries.source_file import SourceFile, Splice
from runners.tasks.grading.canaries.test_functions import find_in_command
from runners.tasks.grading.canaries.variants import STRONG

SEEDS = range(25)
CASES = {
    "a number": "assert f(2) == 4",
    "a number before": "assert 4 == f(2)",
    "a negative number": "assert f(-2) == -4",
    "a text": 'assert str(f(2)) == "4"',
    "an empty text": "assert str(f(2))[:0] == ''",
    "bytes": "assert str(f(2)).encode() == b'4'",
    "a truth": "assert (f(2) > 3) == True",
    "a list": "assert [f(1), f(2)] == [2, 4]",
    "an empty list": "assert [f(n) for n in ()] == []",
    "a dictionary": 'assert {"a": f(2)} == {"a": 4}',
    "either": "assert f(2) == 4 or f(2) == 5",
    "nested": 'assert {"a": [f(2), (f(3),)]} == {"a": [4, (6,)]}',
    "a float": "assert f(0.5) == 1.0",
    "nearly": "assert f(0.1) == pytest.approx(0.2)",
    "a name": "wanted = 4\n    assert f(2) == wanted",
    "a call": "assert f(2) == int('4')",
    "membership": "assert f(2) in (4, 5)",
    "a denial": "assert not f(0)",
    "an order": "assert f(2) > 3",
    "a chain": "assert 3 < f(2) < 5",
    "both": "assert f(2) == 4 and f(3) == 6",
    "a loop": "for given, wanted in [(1, 2), (2, 4)]:\n        assert f(given) == wanted",
    "raises": "with pytest.raises(TypeError):\n        f(None)",
    "raises with text": "with pytest.raises(TypeError, match='unsupported'):\n        f(None)",
    "raises of a call": "pytest.raises(TypeError, f, None)",
    "non-ASCII text before": 'assert ("äöü€", f(2)) == ("äöü€", 4)',
    "a method": "case.assertEqual(f(2), 4)",
    "a list by a method": "case.assertListEqual([f(2)], [4])",
    "nearly by a method": "case.assertAlmostEqual(f(0.1), 0.2)",
    "names in a method": "wanted = 4\n    case.assertEqual(f(2), wanted)",
    "members by a method": "case.assertIn(f(2), (4, 5))",
    "truth by a method": "case.assertTrue(f(2))",
    "no truth by a method": "case.assertFalse(f(0))",
    "no value by a method": "case.assertIsNone([].clear())",
    "an exception by a method": "with case.assertRaises(TypeError):\n        f(None)",
    "a text by a method": "with case.assertRaisesRegex(TypeError, 'unsupported'):\n        f(None)",
    "over lines": "assert f(\n        2,\n    ) == (\n        4\n    )  # four",
}


def parse(body: str) -> tuple[SourceFile, ast.FunctionDef]:
    file = SourceFile.parse(f"def test():\n    {body}\n".encode())
    assert file is not None
    function = file.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    return file, function


def passes(source: bytes, f: Any = lambda a: a * 2 + (a is None)) -> bool:
    """Run ``test`` of a file; return whether it passes."""
    scope: dict[str, Any] = {"f": f, "pytest": pytest, "case": unittest.TestCase()}
    exec(compile(source, "test.py", "exec"), scope)
    try:
        scope["test"]()
    except BaseException:
        return False
    return True


def double(value: Any) -> Any:
    return value * 2 if value is not None else None + 1  # type: ignore[operator]


@pytest.mark.parametrize("name", CASES)
def test_a_right_solution_fails_every_negated_test(name: str) -> None:
    file, function = parse(CASES[name])
    assert passes(file.source, double)
    negations = find_negations(file, function)
    assert negations
    for negation in negations:
        for seed in SEEDS:
            for number, splice in enumerate(negation.family(random.Random(seed))):
                changed = file.apply([splice])
                assert changed is not None, (name, negation.kind)
                assert passes(changed, double) == (number == 0), (negation.kind, changed.decode())


@pytest.mark.parametrize("name", CASES)
def test_a_right_solution_passes_every_rewording(name: str) -> None:
    file, function = parse(CASES[name])
    for seed in SEEDS:
        splices = reword(file, function, random.Random(seed))
        changed = file.apply(splices)
        assert changed is not None, name
        assert passes(changed, double), changed.decode()
        assert not splices or changed != file.source


class Equal:
    """Equals everything, and is not unequal to anything only by name."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "name",
    [
        "a number",
        "a name",
        "a loop",
        "a call",
        "a method",
        "names in a method",
        "a list by a method",
    ],
)
def test_an_object_that_equals_everything_passes_the_strong_negations(name: str) -> None:
    file, function = parse(CASES[name])
    strong = [one for one in find_negations(file, function) if one.kind in STRONG]
    assert strong
    for negation in strong:
        for splice in negation.family(random.Random(1)):
            changed = file.apply([splice])
            assert changed is not None
            assert passes(changed, lambda _: Equal()), changed.decode()


def test_equalities_are_preferred_to_negations() -> None:
    file, function = parse("assert f(2) == 4")
    drawn = [draw_family(find_negations(file, function), random.Random(s)) for s in range(200)]
    kinds = [found[0].kind for found in drawn if found]
    assert kinds.count("const") > 4 * kinds.count("neg") > 0


SWALLOWED = """\
    try:
        assert f(2) == 4
    except Exception:
        pass
    with pytest.raises(ValueError):
        assert f(2) == 4
        raise ValueError
    def inner():
        assert f(2) == 4
"""


def test_what_another_statement_could_swallow_is_not_changed() -> None:
    file, function = parse(SWALLOWED.strip())
    assert {one.kind for one in find_negations(file, function)} == {"raises"}


def test_conditional_assertions_are_changed_only_if_there_is_no_other() -> None:
    file, function = parse("if f(0):\n        assert f(2) == 5\n    assert f(2) == 4")
    for one in find_negations(file, function):
        splice = one.family(random.Random(0))[1]
        assert b"== 5" in (file.apply([splice]) or b"")
    file, function = parse("if f(1):\n        assert f(2) == 4")
    assert {one.kind for one in find_negations(file, function)} == {"const", "neg"}


def test_the_last_resort_is_an_assertion_at_the_end() -> None:
    file, function = parse("value = f(2)  # no claim")
    last = end_negation(file, function)
    assert last is not None
    right, splice = last.family(random.Random(0))
    assert passes(file.apply([right]) or b"", double)
    changed = file.apply([splice]) or b""
    assert changed.startswith(b"def test():\n    value = f(2)  # no claim\n    assert ")
    assert not passes(changed, double)
    file, function = parse("return f(2)")
    assert end_negation(file, function) is None


def test_comments_and_quotes_stay_as_they_are() -> None:
    text = "assert str(f(2)) == 'four'  # said in words"
    file, function = parse(text)
    (const,) = (one for one in find_negations(file, function) if one.kind == "const")
    right, *others = (file.apply([splice]) for splice in const.family(random.Random(0)))
    assert right == file.source
    for changed in others:
        assert changed is not None
        assert changed.endswith(b"'  # said in words\n")
        assert len(changed) == len(file.source)


def test_a_changed_literal_has_its_type_and_another_value() -> None:
    for text in (
        "1",
        "-3",
        "0.5",
        "'a b'",
        "''",
        "b'xy'",
        "True",
        "[1, [2]]",
        "()",
        "{'k': {'v': 1}}",
    ):
        file = SourceFile.parse(text.encode())
        assert file is not None
        node = file.tree.body[0]
        assert isinstance(node, ast.Expr)
        assert is_literal(node.value)
        right = ast.literal_eval(text)
        for seed in SEEDS:
            values = [
                ast.literal_eval((file.apply([splice]) or b"").decode())
                for splice in literal_family(file, node.value, random.Random(seed))
            ]
            assert values[0] == right
            assert len({repr(value) for value in values}) == len(values) > 1
            assert {type(value) for value in values} == {type(right)}


@pytest.mark.parametrize(
    "text", ["0", "7", "10", "1350", "0.5", "3.25", "40.0", "2e-07", "'a1'", "'Total'", "b'x'"]
)
def test_a_family_of_values_does_not_tell_which_of_them_is_right(text: str) -> None:
    """Whichever member is the right one, the same values can stand beside it."""

    def families(source: str, count: int) -> list[set[str]]:
        file = SourceFile.parse(source.encode())
        assert file is not None
        node = file.tree.body[0]
        assert isinstance(node, ast.Expr)
        return [
            {splice.text for splice in literal_family(file, node.value, random.Random(seed))}
            for seed in range(count)
        ]

    for family in families(text, 5):
        for member in family:
            assert family <= set().union(*families(member, 200)), member


@pytest.mark.parametrize("text", ["6", "0", "-2", "True", "1.5", "'a'", "''", "b'xy'"])
def test_a_value_is_spelled_differently(text: str) -> None:
    for seed in SEEDS:
        other = respell(text, random.Random(seed))
        assert other is not None
        assert repr(eval(other)) == repr(ast.literal_eval(text))
    assert respell("None", random.Random(0)) is None
    assert respell("[]", random.Random(0)) is None


def test_splices_that_overlap_and_text_that_is_no_python_are_refused() -> None:
    file = SourceFile.parse(b"a = 1\n")
    assert file is not None
    assert file.apply([Splice(0, 3, "b"), Splice(2, 5, "c")]) is None
    assert file.apply([Splice(4, 5, "(")]) is None
    assert SourceFile.parse(b"a = (\n") is None
    assert SourceFile.parse(b"\xff = 1\n") is None
    assert SourceFile.parse(b"a = 1\r\n") is None


PROGRAM = """\
import sys
from calc.add import add

def check(found, wanted):
    if found != wanted:
        sys.exit(1)

check(add(2, 3), 5)
if add(1, 1) != 2:
    sys.exit(2)
assert add(0, 0) == 0
if __name__ == "__main__":
    print("done")
"""


def test_a_program_s_claims_are_changed_and_nothing_else() -> None:
    file = SourceFile.parse(PROGRAM.encode())
    assert file is not None
    changed = set()
    for one in find_program_negations(file):
        splice = one.family(random.Random(0))[1]
        text = (file.apply([splice]) or b"").decode()
        different = zip(PROGRAM.split("\n"), text.split("\n"), strict=True)
        changed |= {number for number, (a, b) in enumerate(different) if a != b}
    assert changed == {7, 8, 10}


def test_a_program_may_have_nothing_to_change() -> None:
    file = SourceFile.parse(textwrap.dedent("import runpy\nrunpy.run_module('suite')\n").encode())
    assert file is not None
    assert find_program_negations(file) == []


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python3 -m unittest tests.test_a.A", "a.A.x a.A.y"),
        ("python3 -m unittest tests.test_a.A.test_y tests.test_b", "a.A.y b.A.x b.A.y b.z"),
        ("python3 -m pytest -q ./tests/test_b.py::test_z", "b.z"),
        ("pytest tests/test_a.py", "a.A.x a.A.y a.z"),
        ("pytest tests/", "a.A.x a.A.y a.z b.A.x b.A.y b.z"),
        ("make check", "a.A.x a.A.y a.z b.A.x b.A.y b.z c.A.x c.A.y c.z"),
    ],
)
def test_only_tests_that_a_command_runs_are_changed(command: str, found: str) -> None:
    text = b"class A:\n    def test_x(self): 1\n    def test_y(self): 1\ndef test_z(): 1\n"
    files = {}
    for path in ("tests/test_a.py", "tests/test_b.py", "more/test_c.py"):
        file = SourceFile.parse(text)
        assert file is not None
        files[path] = file
    names = [
        f"{test.path[-4]}.{'A.' if test.function.args.args else ''}{test.function.name[-1]}"
        for test in find_in_command(files, command)
    ]
    assert " ".join(sorted(names)) == found
