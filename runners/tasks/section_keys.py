"""Name the keys of the set of tasks that is read: readers know one set, whichever it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SECTION = ContextVar("section", default="task")
"""Section that is read: ``task``, ``eval_task``, ``task.sets[1]``."""


@contextmanager
def reading_section(key: str) -> Iterator[None]:
    """Let messages name the keys of this section."""
    token = _SECTION.set(key)
    try:
        yield
    finally:
        _SECTION.reset(token)


def name_key(name: str) -> str:
    """Return a key of the section that is read.

    >>> with reading_section("eval_task"):
    ...     name_key("path")
    'eval_task.path'
    """
    return f"{_SECTION.get()}.{name}"
