"""Project with one bug: its files, the problem statement, the fix and the deciding tests."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from runners.tasks.bugfix.bug_kinds import BUG_KINDS, BugKind, evaluate
from runners.tasks.bugfix.project_names import NameSplit, ProjectNames, draw_constant, draw_names

_PROBLEM = "Fix `{function}` in `{path}` to do what its docstring says."

_FUNCTION = '''\
def {function}({signature}):
    """{wording}"""
    return {expression}
'''

_COMPANION = '''\
{constant} = {value}


def {function}(numbers):
    """Numbers raised by the constant of this module."""
    return [number + {constant} for number in numbers]
'''

_FUNCTION_TESTS = """\
import unittest

from {package}.{module} import {function}


class {case}(unittest.TestCase):
    def test_first_example(self):
        self.assertEqual({function}{first}, {first_answer})

    def test_examples(self):
        for arguments, answer in {examples}:
            self.assertEqual({function}(*arguments), answer)

    def test_answers_twice_alike(self):
        self.assertEqual({function}{first}, {function}{first})


if __name__ == "__main__":
    unittest.main()
"""

_COMPANION_TESTS = """\
import unittest

from {package}.{module} import {constant}, {function}


class {case}(unittest.TestCase):
    def test_raises_by_the_constant(self):
        self.assertEqual({function}([1, {value}]), [{one_more}, {double}])

    def test_constant(self):
        self.assertEqual({constant}, {value})


if __name__ == "__main__":
    unittest.main()
"""

_README = """\
# {package}

`{module}` has `{function}`; `{companion}` has the rest. Tests: `python -m unittest`.
"""


@dataclass(frozen=True, slots=True)
class Project:
    """A project before it is a git repository."""

    kind: str
    function: str
    """The function with the bug."""
    wording: str
    """Its docstring."""
    files: dict[str, str]
    """Text by path, as at the base commit."""
    path: str
    """The file with the bug."""
    broken: str
    """The wrong statement, as it is in that file."""
    fix: str
    """The right statement."""
    wrong: tuple[str, ...]
    """Other wrong statements, from the other expressions of this kind."""
    problem_statement: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    protected: tuple[str, ...]

    def replace_bug(self, statement: str) -> str:
        """Return the text of the buggy file with another statement in place of the bug."""
        return self.files[self.path].replace(self.broken, statement)

    @property
    def gold_patch(self) -> str:
        """The fix as ``git diff`` prints it."""
        before, after = self.files[self.path], self.replace_bug(self.fix)
        old, new = before.splitlines(), after.splitlines()
        line = next(
            number for number, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]
        )
        start, end = max(0, line - 3), min(len(old), line + 4)
        hunk = [f" {text}" for text in old[start:line]]
        hunk += [f"-{old[line]}", f"+{new[line]}"]
        hunk += [f" {text}" for text in old[line + 1 : end]]
        size = f"{start + 1},{end - start}"
        return "\n".join(
            [
                f"diff --git a/{self.path} b/{self.path}",
                f"index {_blob_id(before)[:7]}..{_blob_id(after)[:7]} 100644",
                f"--- a/{self.path}",
                f"+++ b/{self.path}",
                f"@@ -{size} +{size} @@",
                *hunk,
                "",
            ]
        )


def draw_project(rng: random.Random, split: NameSplit) -> Project:
    """Draw a project of a split; the same generator state gives the same project."""
    kind = rng.choice(BUG_KINDS)
    wanted = rng.choice(kind.behaviours)
    present = rng.choice([one for one in kind.expressions if one != wanted.expression])
    drawn = draw_names(rng, split)
    package, module, function = drawn.package, drawn.module, drawn.function
    a, b = drawn.first, drawn.second

    def statement(expression: str) -> str:
        return "return " + expression.format(a=a, b=b)

    source = _FUNCTION.format(
        function=function,
        signature=", ".join((a, b)[: kind.arity]),
        wording=wanted.wording.format(a=a, b=b),
        expression=present.format(a=a, b=b),
    )
    path = f"{package}/{module}.py"
    files = {
        "README.md": _README.format(
            package=package, module=module, function=function, companion=drawn.companion
        ),
        f"{package}/__init__.py": "",
        path: source,
        "tests/__init__.py": "",
    }
    companion_files, companion_tests = _companion(drawn, draw_constant(rng, split))
    files |= companion_files
    case = _class_name(function)
    test_module = f"test_{module}"
    files[f"tests/{test_module}.py"] = _function_tests(rng, kind, wanted.expression, present, drawn)
    prefix = f"tests.{test_module}.{case}."
    return Project(
        kind=kind.name,
        function=function,
        wording=wanted.wording.format(a=a, b=b),
        files=dict(sorted(files.items())),
        path=path,
        broken=statement(present),
        fix=statement(wanted.expression),
        wrong=tuple(
            statement(one) for one in kind.expressions if one not in (wanted.expression, present)
        ),
        problem_statement=_PROBLEM.format(function=function, path=path),
        fail_to_pass=(prefix + "test_examples", prefix + "test_first_example"),
        pass_to_pass=(*companion_tests, prefix + "test_answers_twice_alike"),
        protected=tuple(sorted(name for name in files if name.startswith("tests/"))),
    )


def _companion(drawn: ProjectNames, value: int) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return a second, correct module with its tests, and the ids of those tests."""
    package, module = drawn.package, drawn.companion
    case = _class_name(drawn.raiser)
    fields = {
        "package": package,
        "module": module,
        "function": drawn.raiser,
        "constant": drawn.constant.upper(),
        "value": value,
    }
    tests = _COMPANION_TESTS.format(**fields, case=case, one_more=value + 1, double=2 * value)
    files = {
        f"{package}/{module}.py": _COMPANION.format(**fields),
        f"tests/test_{module}.py": tests,
    }
    prefix = f"tests.test_{module}.{case}."
    return files, (prefix + "test_constant", prefix + "test_raises_by_the_constant")


def _function_tests(
    rng: random.Random, kind: BugKind, wanted: str, present: str, drawn: ProjectNames
) -> str:
    """Return tests that fail for the bug and for every other wrong expression of the kind."""
    cases = kind.cases(rng, wanted)
    first = next(case for case in cases if evaluate(wanted, case) != evaluate(present, case))
    return _FUNCTION_TESTS.format(
        package=drawn.package,
        module=drawn.module,
        function=drawn.function,
        case=_class_name(drawn.function),
        first=f"({', '.join(map(repr, first))})",
        first_answer=repr(evaluate(wanted, first)),
        examples=repr([(case, evaluate(wanted, case)) for case in cases]),
    )


def _class_name(identifier: str) -> str:
    return "Test" + identifier.title()


def _blob_id(text: str) -> str:
    """Return git's object id of a file's content."""
    content = text.encode()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
