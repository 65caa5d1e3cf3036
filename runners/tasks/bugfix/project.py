"""Project with one bug: its files, problem statement, fix and evidence, and the deciding tests."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from runners.tasks.bugfix.kinds import (
    BUG_KINDS,
    DOCSTRINGS,
    FUNCTION_API,
    ROW_API,
    BugKind,
    Place,
)
from runners.tasks.bugfix.project_names import (
    WORDS,
    NameSplit,
    ProjectNames,
    draw_constant,
    draw_names,
)

API = "api.py"
CHECK = "sh check"
"""Command that prints the first error of the module's tests."""
PASSED = "passed"
"""Its output when there is none."""

_PROBLEM = "Fix `{function}` in `{path}`: `sh check` fails."

# The tests are real, and their whole output would be three times as long as the rest of an episode.
# Python 3.12 and later add a guess ("Did you mean: ...?") to some errors, which is cut off.
_CHECK = """\
python -SB -m unittest -q tests.test_{module} 2>&1 |
    grep -om1 '[A-Z][a-zA-Z]*Error[^.]*' || echo passed
"""

_MODULE = '''\
{imports}def {function}({argument}):
    """{docstring}"""
    {statement}
'''

_TESTS = """\
import unittest

{imports}from {package}.{module} import {function}


class {case}(unittest.TestCase):
    def test_answer(self):
        self.{answer}

    def test_docstring(self):
        self.assertEqual({function}.__doc__, {docstring!r})

    def test_examples(self):
        {examples}


if __name__ == "__main__":
    unittest.main()
"""

_API_TESTS = """\
import unittest

from api import {name}


class TestApi(unittest.TestCase):
    def test_{lower}(self):
        self.assertEqual({call}, {answer})


if __name__ == "__main__":
    unittest.main()
"""

_README = """\
# {package}

`{package}/{module}.py` has `{function}`; `api.py` has `{api}`. First failing test: `sh check`.
"""


@dataclass(frozen=True, slots=True)
class Project:
    """A project before it is a git repository."""

    kind: str
    function: str
    """The function with the bug."""
    files: dict[str, str]
    """Text by path, as at the base commit."""
    path: str
    """The file with the bug."""
    broken: str
    """The wrong statement, as it is in that file."""
    fix: str
    """The right statement."""
    wrong: tuple[str, ...]
    """Other wrong statements, with every value that occurs nowhere in the project."""
    around: tuple[str, str]
    """The statement's text before and after its value."""
    place: Place
    """Place of the evidence."""
    error: str
    """Template of the output of ``sh check`` for the wrong value ``{old}``."""
    problem_statement: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    protected: tuple[str, ...]

    def predict_check(self, statement: str) -> str:
        """Return what ``sh check`` prints with a right or wrong statement in place of the bug."""
        if statement == self.fix:
            return PASSED
        before, after = self.around
        return self.error.replace("{old}", statement.removeprefix(before).removesuffix(after))

    def look(self, place: Place) -> str:
        """Return what a place shows at the base commit."""
        return self.files[API] if place == API else self.predict_check(self.broken) + "\n"

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
        # Git repeats the last line before a hunk that begins with a letter, as C's functions do.
        heading = next((f" {text}" for text in old[:start][::-1] if text[:1].isalpha()), "")
        return "\n".join(
            [
                f"diff --git a/{self.path} b/{self.path}",
                f"index {_blob_id(before)[:7]}..{_blob_id(after)[:7]} 100644",
                f"--- a/{self.path}",
                f"+++ b/{self.path}",
                f"@@ -{size} +{size} @@{heading}",
                *hunk,
                "",
            ]
        )


def draw_project(
    rng: random.Random, split: NameSplit, kinds: Sequence[BugKind] = BUG_KINDS
) -> Project:
    """Draw a project of a split; the same generator state gives the same project."""
    kind = rng.choice(kinds)
    names = draw_names(rng, split)
    package, module, function = names.package, names.module, names.function
    values = [value for value in kind.values if value not in astuple(names)]
    old, new = (names.old, names.new) if kind.values is WORDS else rng.sample(values, 2)
    argument = names.argument if kind.draw is not None else ""
    docstring = DOCSTRINGS[kind.place]
    broken, fix = kind.write(old, argument), kind.write(new, argument)
    path, test_path = f"{package}/{module}.py", f"tests/test_{module}.py"
    api, api_name, api_tests = _draw_api(rng, split, kind, new if kind.api else names.other)
    files = {
        "README.md": _README.format(
            package=package, module=module, function=function, api=api_name
        ),
        "check": _CHECK.format(module=module),
        API: api,
        f"{package}/__init__.py": "",
        path: _MODULE.format(
            imports=kind.imports,
            function=function,
            argument=argument,
            docstring=docstring,
            statement=broken,
        ),
        "tests/__init__.py": "",
        "tests/test_api.py": api_tests,
        test_path: _draw_tests(rng, kind, names, new),
    }
    prefix = f"tests.test_{module}.{_class_name(function)}."
    return Project(
        kind=kind.name,
        function=function,
        files=dict(sorted(files.items())),
        path=path,
        broken=broken,
        fix=fix,
        wrong=tuple(kind.write(value, argument) for value in values if value not in (old, new)),
        around=kind.around(argument),
        place=kind.place,
        error=kind.error.replace("{new}", new),
        problem_statement=_PROBLEM.format(function=function, path=path),
        fail_to_pass=(prefix + "test_answer", prefix + "test_examples"),
        pass_to_pass=(f"tests.test_api.TestApi.test_{api_name.lower()}", prefix + "test_docstring"),
        protected=tuple(sorted(name for name in files if name.startswith("tests/"))),
    )


def _draw_api(
    rng: random.Random, split: NameSplit, kind: BugKind, word: str
) -> tuple[str, str, str]:
    """Return the text of ``api.py``, the name that it defines, and its tests."""
    number = draw_constant(rng, split)
    text = kind.api or rng.choice((FUNCTION_API, ROW_API))
    text = text.format(new=word, number=number)
    if text.startswith("def "):
        fields = {"name": word, "call": f"{word}([{number}, 7])", "answer": number + 7}
    else:
        name = text.partition(" ")[0]
        fields = {"name": name, "call": name, "answer": text.partition(" = ")[2].strip()}
    name = str(fields["name"])
    return text, name, _API_TESTS.format(**fields, lower=name.lower())


def _draw_tests(rng: random.Random, kind: BugKind, names: ProjectNames, value: str) -> str:
    """Return tests that fail for every wrong value."""
    calls = [kind.call(rng, value) for _ in range(3)]
    arguments, answer = calls[0]
    call = f"{names.function}({', '.join(map(repr, arguments))})"
    assertion = f"assertEqual({call}, {answer!r})"
    examples = f"self.assertEqual([{call}, {call}], {[answer, answer]!r})"
    if arguments:
        examples = (
            f"for arguments, answer in {calls!r}:\n"
            f"            self.assertEqual({names.function}(*arguments), answer)"
        )
    if kind.compared:
        assertion = f"assertTrue({call} == {kind.compared})"
    return _TESTS.format(
        imports=f"from api import {kind.compared}\n" if kind.compared else "",
        package=names.package,
        module=names.module,
        function=names.function,
        case=_class_name(names.function),
        docstring=DOCSTRINGS[kind.place],
        answer=assertion,
        examples=examples,
    )


def _class_name(identifier: str) -> str:
    return "Test" + identifier.title()


def _blob_id(text: str) -> str:
    """Return git's object id of a file's content."""
    content = text.encode()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
