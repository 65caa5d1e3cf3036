"""Log parsers by name, as task sets call them: which read pytest's output, and how they name tests.

The names are those of the ``swebench`` package; other sets have copied them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

PYTEST_PARSERS = frozenset(
    f"parse_log_{name}"
    for name in (
        *("pytest", "pytest_options", "pytest_v2", "seaborn", "matplotlib", "astroid", "flask"),
        *("marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray", "pydicom", "requests", "pylint"),
        *("astropy", "scikit", "sphinx"),
    )
)
"""Parsers of pytest's output; tests of other runners our plugin cannot see."""
_SHORTENING = frozenset(
    f"parse_log_{name}" for name in ("pytest_options", "pydicom", "requests", "pylint")
)
_OPTION = re.compile(r"(.*?)\[(/(?!/)[^*]*)\]")


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
