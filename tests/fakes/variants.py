"""Cases of a matrix: those that every change is tried on, and those that are integration tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def variants(cases: Iterable[Any], typical: Collection[Any]) -> list[Any]:
    """Return parameters of which those that are not typical are marked as integration tests.

    The other cases are the same code on other data: .ci/run has them where a change touches their
    folder, .ci/nightly always. A tuple is the values of several arguments.
    """
    cases = list(cases)
    assert all(case in cases for case in typical), typical
    return [case if case in typical else _mark(case) for case in cases]


def _mark(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.integration)
