"""SWE-bench: rows of 5.x have their eval script, classic rows leave it to the harness.

Full, Lite, Verified, Multilingual, and rows of one's own in the same fields.
"""

from __future__ import annotations

import shlex
from typing import ClassVar

from pydantic import Field

from runners.tasks.contract import Grading
from runners.tasks.diffs import read_paths
from runners.tasks.schemas.row import (
    Commit,
    Diff,
    NameList,
    RowContext,
    TestListRow,
    Text,
    name_image,
)
from runners.tasks.schemas.test_script import (
    COUNTS_BOTH,
    PYTEST,
    ScriptReading,
    build_test_script,
    find_test_files,
)

CLASSIC: dict[str, tuple[str, str]] = {
    "django/django": (
        "parse_log_django",
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
    ),
    "sympy/sympy": ("parse_log_sympy", "bin/test -C --verbose"),
    "mwaskom/seaborn": ("parse_log_seaborn", "pytest --no-header -rA"),
    "matplotlib/matplotlib": ("parse_log_matplotlib", PYTEST),
    "psf/requests": ("parse_log_requests", PYTEST),
    "pylint-dev/pylint": ("parse_log_pylint", PYTEST),
    "pydicom/pydicom": ("parse_log_pydicom", PYTEST),
    "astropy/astropy": ("parse_log_astropy", PYTEST),
    "scikit-learn/scikit-learn": ("parse_log_scikit", PYTEST),
    "sphinx-doc/sphinx": ("parse_log_sphinx", PYTEST),
}
"""Log parser and test command by repository, for those that do not run plain pytest."""


class SwebenchRow(TestListRow):
    """SWE-bench."""

    schema_name: ClassVar[str] = "swebench"

    base_commit: Commit
    test_patch: Diff
    pass_to_pass: NameList = Field(alias="PASS_TO_PASS")
    version: Text = ""
    environment_setup_commit: Text = ""
    eval_script: Text = ""
    log_parser: Text = ""
    eval_type: Text = ""

    @property
    def derived_image(self) -> str:
        """Return the set's own images; see the base."""
        return name_image("swebench/sweb.eval.x86_64.", self.instance_id)

    @property
    def reading(self) -> ScriptReading:
        """Return reader of the eval script's output."""
        return ScriptReading(
            log_parser=self.log_parser or CLASSIC.get(self.repo, ("parse_log_pytest", ""))[0],
            eval_type=self.eval_type or COUNTS_BOTH,
            repo=self.repo,
            version=self.version,
            image=self.image,
        )

    def build_eval_script(self) -> str:
        """Return the row's script, or the one that the harness of classic rows writes."""
        if self.eval_script:
            return self.eval_script
        command = CLASSIC.get(self.repo, ("", PYTEST))[1]
        arguments = find_test_files(self.test_patch)
        if self.repo == "django/django":
            arguments = [_module_of(path) for path in arguments]
        test = f"{command} {shlex.join(arguments)}"
        return build_test_script(
            self.workdir, self.test_patch, [test], base_commit=self.base_commit
        )

    def test_paths(self) -> set[str]:
        """Return the paths of the test patch; see the base."""
        return set(read_paths(self.test_patch).all)

    def grading(self, context: RowContext) -> Grading:
        """Return its eval script; see the base."""
        return self.reading.grade(self.build_eval_script(), self.workdir, context.judge)


def _module_of(path: str) -> str:
    """Return the name of a test file for django's own test program."""
    return path.removeprefix("tests/").removesuffix(".py").replace("/", ".")
