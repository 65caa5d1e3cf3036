"""Metadata of installations is found where Python and pytest would read it, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runners.tasks.contract import Patch, Task
from runners.tasks.patches.protection import find_metadata

TASK = Task("t", "train", Path("repo"), "0" * 40, "fix", ("a",), (), (), "", "operator")


def added(path: str) -> bytes:
    """Return the diff that adds a file of one line."""
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1 @@\n+x\n".encode()


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("x.egg-info/entry_points.txt", "x.egg-info"),
        ("src/x-1.dist-info/METADATA", "src/x-1.dist-info"),
        ("evil.pth", "evil.pth"),
        ("env/site-packages/x.pth", "env/site-packages/x.pth"),
        ("a/b/.pytest_cache/v/lastfailed", "a/b/.pytest_cache"),
        ("docs/x.egg-info/PKG-INFO", None),
        ("src/x.py", None),
    ],
)
def test_metadata_is_found_where_it_is_read(path: str, found: str | None) -> None:
    patch = Patch(added(path), "", (path,), ())
    assert find_metadata(TASK, patch) == ((found,) if found else ())
    assert find_metadata(replace(TASK, gold_patch=added(path).decode()), patch) == ()
