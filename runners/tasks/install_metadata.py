"""Leave out of grading what an installation leaves in a work tree, silently.

``pip install -e .`` is honest, so its files are no offence. But pytest loads the plugins that such
metadata names, and Python executes lines of ``.pth`` files, wherever modules are imported from. So
a patch's metadata there is removed, or restored to the base, before the tests run.
"""

from __future__ import annotations

from collections.abc import Iterator

from runners.tasks.contract import Patch, Task
from runners.tasks.diffs import read_paths

SUFFIXES = (".dist-info", ".egg-info", ".egg-link", ".pth")
SOURCES = frozenset({"", "src", "lib", "python"})
"""Folders of a repository from which modules are imported."""
SITES = frozenset({"site-packages", "dist-packages"})
CACHE = ".pytest_cache"
"""Pytest reads its last run there, for example which tests are to be skipped."""


def find_metadata(task: Task, patch: Patch) -> tuple[str, ...]:
    """Return the paths of metadata and caches that a patch changes, sorted."""
    free = read_paths(task.gold_patch).all
    changed = read_paths(patch.diff.decode("utf-8", "surrogateescape")).all - free
    return tuple(sorted({found for path in changed for found in _metadata_of(path)}))


def _metadata_of(path: str) -> Iterator[str]:
    parts = path.split("/")
    for number, part in enumerate(parts):
        folder = "/".join(parts[:number])
        importable = folder in SOURCES or parts[number - 1] in SITES
        if part == CACHE or (importable and part.endswith(SUFFIXES)):
            yield "/".join(parts[: number + 1])
            return
