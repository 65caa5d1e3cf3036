"""The parts of SWE-bench that its rows leave to the harness: test commands and log parsers."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable

from runners.tasks.diffs import read_paths
from runners.tasks.rows import SwebenchRow

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
ACTIVATE = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi"
"""The official images have the project's Python in a conda environment."""
DELIMITER = "EOF_114329324912"
PYTEST = "python -m pytest --no-header -rA --tb=short -p no:cacheprovider"
NOT_TESTS = frozenset({".json", ".png", ".csv", ".txt", ".md", ".jpg", ".pkl", ".yml", ".toml"})
"""Files of a test patch that are data."""

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
PYTEST_PARSERS = frozenset(
    f"parse_log_{name}"
    for name in (
        *("pytest", "pytest_options", "pytest_v2", "seaborn", "matplotlib", "astroid", "flask"),
        *("marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray", "pydicom", "requests", "pylint"),
        *("astropy", "scikit", "sphinx"),
    )
)
"""The package's parsers of pytest's output; tests of other runners our plugin cannot see."""
COUNTS_BOTH = "pass_and_fail"
_SHORTENING = frozenset(
    f"parse_log_{name}" for name in ("pytest_options", "pydicom", "requests", "pylint")
)
_OPTION = re.compile(r"(.*?)\[(/(?!/)[^*]*)\]")


def build_eval_script(row: SwebenchRow) -> str:
    """Return the script that puts the tests in place and runs them, as SWE-bench writes it."""
    if row.eval_script:
        return row.eval_script
    names = read_paths(row.test_patch)
    old = " ".join(sorted(names.existing))
    reset = f"git checkout {row.base_commit} {old}" if old else ": no test file to reset"
    command = CLASSIC.get(row.repo, ("", PYTEST))[1]
    return "\n".join(
        [
            "#!/bin/bash",
            "set -uxo pipefail",
            ACTIVATE,
            f"cd {row.workdir}",
            f"git config --global --add safe.directory {row.workdir}",
            reset,
            f"git apply -v - <<'{DELIMITER}'",
            row.test_patch.removesuffix("\n"),
            DELIMITER,
            f": '{START}'",
            f"{command} {' '.join(test_arguments(row))}",
            f": '{END}'",
            reset,
            "",
        ]
    )


def test_arguments(row: SwebenchRow) -> list[str]:
    """Return the arguments of the test command: the test files of the patch."""
    found = [
        path
        for path in sorted(read_paths(row.test_patch).all)
        if posixpath.splitext(path)[1] not in NOT_TESTS
    ]
    if row.repo == "django/django":
        return [p.removeprefix("tests/").removesuffix(".py").replace("/", ".") for p in found]
    return found


def parser_name(row: SwebenchRow) -> str:
    """Return the name of the package's log parser of a row."""
    return row.log_parser or CLASSIC.get(row.repo, ("parse_log_pytest", ""))[0]


def uses_pytest(row: SwebenchRow) -> bool:
    """Return whether our plugin can see the row's tests."""
    return parser_name(row) in PYTEST_PARSERS and row.eval_type in ("", COUNTS_BOTH)


def id_normalizer(parser: str) -> Callable[[str], str]:
    """Return the function from a pytest id to its form in the rows of this log parser."""
    if parser in _SHORTENING:
        return _drop_option_path
    if parser == "parse_log_matplotlib":
        return _number_mouse_buttons
    return str


def _drop_option_path(name: str) -> str:
    """Return an id whose parameter, if a path, is cut to its last part, as the parsers do."""
    found = _OPTION.match(name)
    return f"{found[1]}[/{found[2].rpartition('/')[2]}]" if found else name


def _number_mouse_buttons(name: str) -> str:
    return name.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")


def encode_package_row(row: SwebenchRow) -> str:
    """Return the fields that ``make_test_spec`` needs besides ids and script, as JSON."""
    return json.dumps(
        {
            "repo": row.repo,
            "version": row.version,
            "image": row.image,
            "log_parser": parser_name(row),
            "eval_type": row.eval_type or COUNTS_BOTH,
        }
    )
